"""What must be right on this machine before any agent is started: environment variables, and the place of the chief.

In: a ResourceSpec and the environment. Out: nothing, or the error that a start would end with. A front asks before its
loop begins, and the examination asks again.
"""

import os

from autodist_core.cluster.agents.deadlines import Deadlines
from autodist_core.cluster.protocol.handshake import job_secret
from autodist_core.cluster.protocol.sockets import is_of_this_machine
from autodist_core.errors import LaunchError, ResourceSpecError
from autodist_core.resource_spec import ResourceSpec


def require_startable(spec: ResourceSpec) -> None:
    """Raise unless this program can start the agents of a resource spec, as far as this machine alone can tell.

    >>> os.environ["AUTODIST_PORTS"] = "abc"
    >>> require_startable(ResourceSpec({"nodes": [{"address": "10.0.0.1", "chief": True}, {"address": "10.0.0.2"}]}))
    Traceback (most recent call last):
    autodist_core.errors.LaunchError: AUTODIST_PORTS='abc' is not a range of ports such as '20000-20099'.
    >>> del os.environ["AUTODIST_PORTS"]
    """
    port_range()
    Deadlines.from_environment()
    if any(node.agent_port is not None for node in spec.nodes):
        # A scheduler has said which process is the chief's.
        job_secret()
    elif len(spec.nodes) > 1 and not is_of_this_machine(spec.chief.address):
        here = [node.address for node in spec.nodes if is_of_this_machine(node.address)]
        if here:
            raise ResourceSpecError(
                f"{spec.source}: 'chief: true' is on {spec.chief.address}, and this machine, where your program runs, "
                f"is {' and '.join(here)}. Move 'chief: true' there, or start the program on {spec.chief.address}."
            )


def port_range() -> list[int]:
    """The ports that AUTODIST_PORTS="first-last" allows for servers; empty if any port is allowed.

    >>> os.environ["AUTODIST_PORTS"] = "20000-20002"
    >>> port_range()
    [20000, 20001, 20002]
    >>> del os.environ["AUTODIST_PORTS"]
    """
    text = os.environ.get("AUTODIST_PORTS", "")
    if not text:
        return []
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and 0 < int(first) <= int(last or first) < 65536):
        raise LaunchError("", f"AUTODIST_PORTS={text!r} is not a range of ports such as '20000-20099'.")
    return list(range(int(first), int(last or first) + 1))
