"""An agent on another machine, started over ssh."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from autodist_core.cluster import ssh
from autodist_core.errors import AutodistError
from autodist_core.resource_spec import Node, SSHGroup

_KILL_SECONDS = 5.0


class RemoteAgent:
    """A `Process` of `handle` that runs elsewhere."""

    def __init__(
        self, node: Node, group: SSHGroup, env: Mapping[str, str], deadline: float, keepalive: float
    ) -> None:
        self._connection = ssh.connect(node.address, group, deadline, keepalive_seconds=keepalive)
        python = "python" if group.python_venv else "python3"
        try:
            self._process = self._connection.start(f"{python} -m autodist_core.cluster.agent", env)
        except BaseException:
            self._connection.close()
            raise
        self.stdin, self.stdout, self.stderr = self._process.stdin, self._process.stdout, self._process.stderr

    def ending(self, timeout: float) -> str:
        """How it ended, in words; empty if it still runs after that time."""
        try:
            status = self._process.wait(timeout)
        except TimeoutError:
            return ""
        if self._connection.lost:
            return f"the connection to it is gone ({self._connection.lost})"
        # The ssh protocol says of a signal's victim that it has no exit status.
        return f"its agent ended ({'killed by a signal' if status < 0 else f'exit status {status}'})"

    def kill(self, pid: int, started: int) -> None:
        """End it at once, if that process is the one that started at that tick."""
        is_it = f'test "$(sed "s/.*) //" /proc/{pid}/stat 2>/dev/null | cut -d" " -f20)" = {started}'
        with contextlib.suppress(AutodistError, OSError):
            ended = self._connection.start(f"sh -c '{is_it} && kill -9 {pid}'", deadline_seconds=_KILL_SECONDS)
            ended.wait(_KILL_SECONDS)

    def close(self) -> None:
        """End its input, which ends the agent, and the connection."""
        self._process.close()
        self._connection.close()
