"""What the chief needs of an agent's process, in whatever way the process was started.

`AgentHandle` uses an `AgentProcess` for its messages. The modules ``child_agent``, ``agent_over_ssh`` and
``scheduled_agent`` have one class each that provides it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from autodist_core.cluster.protocol.messages import ByteWriter, LineReader

if TYPE_CHECKING:  # paramiko is imported when the first agent is started over ssh
    from autodist_core.cluster.ssh import Connection


class AgentProcess(Protocol):
    """The process of one agent, on this machine or another one, and the pipes to it.

    >>> from autodist_core.cluster.agents.child_agent import ChildAgent
    >>> from autodist_core.cluster.protocol.messages import receive
    >>> process: AgentProcess = ChildAgent({})
    >>> first = next(receive(process.stdout))
    >>> process.how_it_ended(0)
    ''
    >>> process.kill(first["pid"], first["started"])
    >>> process.how_it_ended(5)
    'its agent was killed by signal 9'
    >>> process.close()
    """

    @property
    def stdin(self) -> ByteWriter:
        """The pipe for the chief's orders."""

    @property
    def stdout(self) -> LineReader:
        """The pipe of the agent's answers."""

    @property
    def stderr(self) -> LineReader:
        """The pipe of the agent's log."""

    @property
    def connection(self) -> Connection | None:
        """The ssh connection to its machine; None for a process that was not started over ssh."""

    def how_it_ended(self, timeout: float) -> str:
        """How the process ended, in words; empty if it still runs after `timeout` seconds."""

    def kill(self, pid: int, started: int) -> None:
        """End the process at once.

        `pid` is its id and `started` the clock tick at which it started, both as its first message said; both are 0
        before that message.
        """

    def close(self) -> None:
        """Close the pipes, and the ssh connection if there is one."""
