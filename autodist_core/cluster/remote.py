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

    def __init__(self, node: Node, group: SSHGroup, env: Mapping[str, str], deadline: float) -> None:
        self._connection = ssh.connect(node.address, group, deadline)
        python = "python" if group.python_venv else "python3"
        try:
            self._process = self._connection.start(f"{python} -m autodist_core.cluster.agent", env)
        except BaseException:
            self._connection.close()
            raise
        self.stdin, self.stdout, self.stderr = self._process.stdin, self._process.stdout, self._process.stderr

    @property
    def exit_status(self) -> int | None:
        """None while it runs; -1 when a signal ended it or the connection is gone."""
        return self._process.exit_status

    def wait(self, timeout: float) -> int | None:
        """The exit status, or None if it still runs after that time."""
        try:
            return self._process.wait(timeout)
        except TimeoutError:
            return None

    def kill(self, pid: int, started: int) -> None:
        """End it at once, if that process is the one that started at that tick."""
        is_it = f'test "$(sed "s/.*) //" /proc/{pid}/stat 2>/dev/null | cut -d" " -f20)" = {started}'
        with contextlib.suppress(AutodistError, OSError):
            self._connection.start(f"sh -c '{is_it} && kill -9 {pid}'", {}).wait(_KILL_SECONDS)

    def close(self) -> None:
        """End its input, which ends the agent, and the connection."""
        self._process.close()
        self._connection.close()
