"""The requirements that a node must meet: versions, GPUs, clock. Each unmet one is a sentence that names the remedy.

In: the descriptions that the agents gave of their nodes, or the log of an agent that gave none. Out: sentences for the
report.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from autodist_core.cluster.agents.agent_handle import AgentHandle
from autodist_core.errors import amount
from autodist_core.resource_spec import Node

CLOCK_SECONDS = 60.0
"""The largest difference between two clocks that is no problem."""
_COMPARED = {"tensorflow": "TensorFlow", "autodist-keras": "autodist-keras"}


def unmet_requirements(
    node: Node, own: Mapping[str, Any], chief: Mapping[str, Any], clock_offset: float | None
) -> Iterator[str]:
    """The requirements that a node does not meet: it must fit the resource spec and the chief's node.

    `own` and `chief` are the descriptions of the two nodes; the second is empty if the chief's agent gave none.

    >>> own = {"python": "3.12.1", "tensorflow": "2.21.0", "autodist-keras": "1.0.0", "gpus": []}
    >>> list(unmet_requirements(Node("10.0.0.2", gpus=(0,)), own, own | {"python": "3.12.4"}, 0.1))
    ['the spec asks for GPU:0, and 0 GPUs are there: correct the spec, or install the driver']
    """
    if chief and own["python"].split(".")[:2] != chief["python"].split(".")[:2]:
        yield (
            f"Python {own['python']} there, {chief['python']} on the chief: the minor versions must be equal. Install "
            "the chief's version there, or name an environment that has it by 'python_venv'"
        )
    for key, name in _COMPARED.items():
        if chief and own[key] != chief[key]:
            yield (
                f"{name} {own[key] or 'is not installed'} there, {chief[key] or 'not installed'} on the chief: install "
                "the same"
            )
    missing = [f"GPU:{index}" for index in node.gpus if index not in own["gpus"]]
    if missing:
        yield (
            f"the spec asks for {', '.join(missing)}, and {amount(len(own['gpus']), 'GPU is', 'GPUs are')} there: "
            "correct the spec, or install the driver"
        )
    if clock_offset is not None and abs(clock_offset) > CLOCK_SECONDS:
        yield f"its clock is {clock_offset:+.0f} s off the chief's: let both follow a time server"


def why_no_description(agent: AgentHandle) -> str:
    """Why an agent gave no description, if its log has the reason; else empty.

    >>> from types import SimpleNamespace
    >>> said = "/usr/bin/python3: No module named 'tensorflow'"
    >>> why_no_description(SimpleNamespace(log=[said], connection=None)).partition(".")[0]
    'tensorflow is not installed for the Python that runs there'
    """
    log = "\n".join(agent.log)
    missing = re.search(r"No module named '?([\w.]+)", log)
    if missing:
        ours = missing[1].startswith("autodist")
        return (
            f"{'autodist-keras' if ours else missing[1]} is not installed for the Python that runs there. Install "
            f"{'it' if ours else 'autodist-keras with its dependencies'} there, or name the environment that has it "
            "by 'python_venv' in the node's ssh group"
        )
    if re.search(r"\bpython3?: .*not found", log):
        return "there is no Python: say how to get one by 'python_venv' in the node's ssh group" + agent.log_tail()
    group = agent.connection.group if agent.connection is not None and not agent.connection.lost else None
    if group is not None and group.python_venv and agent.ended and agent.identity == (0, 0):
        return (
            f"'python_venv' of its ssh group is {group.python_venv!r}, and that command fails there. Write the command "
            "that activates the environment, such as 'source ~/venv/bin/activate'"
            + (agent.log_tail() or ". If it works in a terminal, sshd or ~/.bashrc there ends the login")
        )
    return ""
