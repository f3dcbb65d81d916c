"""An agent that this process starts on another machine over ssh, in the environment that the node's ssh group names."""

import contextlib
import shlex
import subprocess
from collections.abc import Mapping

from autodist_core.cluster.protocol.messages import AGENT_MODULE
from autodist_core.cluster.ssh import Connection
from autodist_core.errors import AutodistError
from autodist_core.resource_spec import Node, SSHGroup

_KILL_SECONDS = 5.0
# The shell prints its process id and its start, and then becomes the agent: the chief can kill the agent by these two
# numbers even when the agent never answers.
_COMMAND = (
    r'set -- $(cat /proc/$$/stat 2>/dev/null); test "${22}" && echo "{\"pid\":$1,\"started\":${22}}"; '
    f"exec %s -m {AGENT_MODULE}"
)


class AgentOverSSH:
    """An `AgentProcess` on the machine of `node`; `deadline` and `keepalive` are seconds, as in `ssh.Connection`."""

    def __init__(self, node: Node, group: SSHGroup, env: Mapping[str, str], deadline: float, keepalive: float) -> None:
        python = "python" if group.python_venv else "python3"
        command = f"/bin/sh -c {shlex.quote(_COMMAND % python)}"
        ssh = self.connection = Connection(node.address, group, command, env, deadline, keepalive)
        self.stdin, self.stdout, self.stderr = ssh.stdin, ssh.stdout, ssh.stderr

    def how_it_ended(self, timeout: float) -> str:
        """How the agent ended, in words; empty if it still runs after `timeout` seconds."""
        try:
            status = self.connection.wait(timeout)
        except subprocess.TimeoutExpired:
            return ""
        if self.connection.lost:
            return f"the connection to it is gone ({self.connection.lost})"
        # Over ssh, a program that a signal ended has no exit status of its own.
        killed = "killed by a signal, as when memory runs out"
        return f"its agent ended ({killed if status == 255 else f'exit status {status}'})"

    def kill(self, pid: int, started: int) -> None:
        """End the agent at once: the process of that id, if it started at that clock tick; nothing if `pid` is 0."""
        if pid:
            is_the_agent = f'test "$(sed "s/.*) //" /proc/{pid}/stat 2>/dev/null | cut -d" " -f20)" = {started}'
            with contextlib.suppress(AutodistError):
                self.connection.run(f"sh -c '{is_the_agent} && kill -9 {pid}'", _KILL_SECONDS)

    def close(self) -> None:
        """Close the connection, which ends the agent's input and so the agent."""
        self.connection.close()
