"""An agent on another machine, started over ssh."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Mapping

from autodist_core.cluster.protocol.messages import AGENT_MODULE
from autodist_core.errors import AutodistError
from autodist_core.resource_spec import Node, SSHGroup

_KILL_SECONDS = 5.0
# The shell says who it is and becomes the agent, so that one that never answers can be ended too.
_AGENT = (
    r'set -- $(cat /proc/$$/stat 2>/dev/null); test "${22}" && echo "{\"pid\":$1,\"started\":${22}}"; '
    f"exec %s -m {AGENT_MODULE}"
)


class SSHAgent:
    """An `AgentProcess` that runs elsewhere."""

    def __init__(
        self, node: Node, group: SSHGroup, env: Mapping[str, str], deadline: float, keepalive: float
    ) -> None:
        # paramiko is needed on the chief only, and agents import this module too.
        from autodist_core.cluster import ssh

        end = time.monotonic() + deadline
        self.connection = ssh.connect(node.address, group, deadline, keepalive_seconds=keepalive)
        python = "python" if group.python_venv else "python3"
        try:
            self._process = self.connection.start(
                f"/bin/sh -c {shlex.quote(_AGENT % python)}", env, deadline_seconds=max(end - time.monotonic(), 0.1)
            )
        except BaseException:
            self.connection.close()
            raise
        self.stdin, self.stdout, self.stderr = self._process.stdin, self._process.stdout, self._process.stderr

    def ending(self, timeout: float) -> str:
        """How it ended, in words; empty if it still runs after that time."""
        try:
            status = self._process.wait(timeout)
        except TimeoutError:
            return ""
        if self.connection.lost:
            return f"the connection to it is gone ({self.connection.lost})"
        # The ssh protocol says of a signal's victim that it has no exit status.
        return f"its agent ended ({'killed by a signal' if status < 0 else f'exit status {status}'})"

    def kill(self, pid: int, started: int) -> None:
        """End it at once, if that process is the one that started at that tick; without an id there is none to end."""
        if not pid:
            return
        is_it = f'test "$(sed "s/.*) //" /proc/{pid}/stat 2>/dev/null | cut -d" " -f20)" = {started}'
        with contextlib.suppress(AutodistError, OSError):
            ended = self.connection.start(f"sh -c '{is_it} && kill -9 {pid}'", deadline_seconds=_KILL_SECONDS)
            ended.wait(_KILL_SECONDS)

    def close(self) -> None:
        """End its input, which ends the agent, and the connection."""
        self._process.close()
        self.connection.close()
