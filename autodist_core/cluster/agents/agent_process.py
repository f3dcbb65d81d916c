"""What the chief needs of an agent's process, in whatever way it was started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from autodist_core.cluster.protocol.messages import Lines, Sink

if TYPE_CHECKING:  # paramiko is imported when the first agent is started over ssh
    from autodist_core.cluster.ssh import Connection


class AgentProcess(Protocol):
    """A running program and its pipes, here or over ssh."""

    @property
    def stdin(self) -> Sink:
        """What it reads."""

    @property
    def stdout(self) -> Lines:
        """What it answers."""

    @property
    def stderr(self) -> Lines:
        """What it logs."""

    @property
    def connection(self) -> Connection | None:
        """The ssh connection to where it runs, if there is one."""

    def ending(self, timeout: float) -> str:
        """How it ended, in words; empty if it still runs after that time."""

    def kill(self, pid: int, started: int) -> None:
        """End it at once: the process of that id that started at that tick; both are 0 if it has not said."""

    def close(self) -> None:
        """Let go of the pipes, and of the connection if there is one."""
