"""The agent of the chief's own node: a child of this process."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping

from autodist_core.cluster.protocol.messages import AGENT_MODULE

_END_SECONDS = 2.0


class ChildAgent:
    """An `AgentProcess` on this machine. `env` is added to the environment of this process.

    >>> agent = ChildAgent({})
    >>> agent.stdout.readline().startswith(b'{"pid":')
    True
    >>> agent.how_it_ended(0)
    ''
    >>> agent.close()
    >>> agent.how_it_ended(1)
    'its agent ended (exit status 0)'
    """

    connection = None

    def __init__(self, env: Mapping[str, str]) -> None:
        # In a session of its own: Ctrl-C in the terminal is for the user's program, which ends its agents in order.
        self._child = subprocess.Popen(
            [sys.executable, "-m", AGENT_MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, **env}, start_new_session=True,
        )
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self.stdin, self.stdout, self.stderr = self._child.stdin, self._child.stdout, self._child.stderr

    def how_it_ended(self, timeout: float) -> str:
        """How the agent ended, in words; empty if it still runs after `timeout` seconds."""
        try:
            status = self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            return ""
        return f"its agent was killed by signal {-status}" if status < 0 else f"its agent ended (exit status {status})"

    def kill(self, pid: int, started: int) -> None:
        """End the agent at once; this process knows its child without `pid` and `started`.

        >>> agent = ChildAgent({})
        >>> agent.kill(0, 0)
        >>> agent.how_it_ended(5)
        'its agent was killed by signal 9'
        >>> agent.close()
        """
        self._child.kill()

    def close(self) -> None:
        """Close the pipes, which ends the agent, and wait for its end; an agent that does not end is killed."""
        for stream in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                stream.close()
        if not self.how_it_ended(_END_SECONDS):
            self._child.kill()
            self._child.wait()
