"""An agent that this process starts on another machine over ssh, in the environment that the node's ssh group names."""

import contextlib
import shlex
import time
from collections.abc import Mapping

from autodist_core.cluster.protocol.messages import AGENT_MODULE
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
    """An `AgentProcess` on the machine of `node`; `deadline` and `keepalive` are seconds, as in `ssh.connect`."""

    def __init__(
        self, node: Node, group: SSHGroup, env: Mapping[str, str], deadline: float, keepalive: float
    ) -> None:
        # Imported here, so that a program which trains on one machine does not import paramiko.
        from autodist_core.cluster import ssh

        end = time.monotonic() + deadline
        self.connection = ssh.connect(node.address, group, deadline, keepalive_seconds=keepalive)
        python = "python" if group.python_venv else "python3"
        try:
            self._process = self.connection.start(
                f"/bin/sh -c {shlex.quote(_COMMAND % python)}", env, deadline_seconds=max(end - time.monotonic(), 0.1)
            )
        except BaseException:
            self.connection.close()
            raise
        self.stdin, self.stdout, self.stderr = self._process.stdin, self._process.stdout, self._process.stderr

    def how_it_ended(self, timeout: float) -> str:
        """How the agent ended, in words; empty if it still runs after `timeout` seconds."""
        try:
            status = self._process.wait(timeout)
        except TimeoutError:
            return ""
        if self.connection.lost:
            return f"the connection to it is gone ({self.connection.lost})"
        # Over ssh, a program that a signal ended has no exit status; `wait` returns -1 then.
        return f"its agent ended ({'killed by a signal' if status < 0 else f'exit status {status}'})"

    def kill(self, pid: int, started: int) -> None:
        """End the agent at once: the process of that id, if it started at that clock tick; nothing if `pid` is 0."""
        if not pid:
            return
        is_the_agent = f'test "$(sed "s/.*) //" /proc/{pid}/stat 2>/dev/null | cut -d" " -f20)" = {started}'
        with contextlib.suppress(AutodistError, OSError):
            command = self.connection.start(f"sh -c '{is_the_agent} && kill -9 {pid}'", deadline_seconds=_KILL_SECONDS)
            command.wait(_KILL_SECONDS)

    def close(self) -> None:
        """Close the agent's input, which ends the agent, and the connection."""
        self._process.close()
        self.connection.close()
