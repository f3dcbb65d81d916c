"""An agent that a scheduler starts on another machine, with ``on_node.standby``: the chief connects to its port."""

import io
import socket
import time
from contextlib import suppress

from autodist_core.cluster.protocol.handshake import SECRET, job_secret, shake_hands
from autodist_core.errors import LaunchError

_HANDSHAKE_SECONDS, _RETRY_SECONDS = 10.0, 0.5


class ScheduledAgent:
    """An `AgentProcess` whose pipes are one TCP connection; its log goes to the scheduler's log of its node."""

    connection = None

    def __init__(self, address: str, port: int, deadline: float) -> None:
        self._socket = _connect(address, port, deadline)
        self.stdin = self._socket.makefile("wb", buffering=0)
        self.stdout = self._socket.makefile("rb")
        self.stderr = io.BytesIO()

    def how_it_ended(self, timeout: float) -> str:
        """How the agent ended: the chief sees the end of the connection only."""
        return "its agent ended, or the connection to it (the scheduler's log of that node may say why)"

    def kill(self, pid: int, started: int) -> None:
        """Do nothing: the standby process on the node kills its agent when the chief closes the connection."""

    def close(self) -> None:
        """Close the connection, which ends the agent. The agent may have ended it before."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _connect(address: str, port: int, deadline: float) -> socket.socket:
    """Connect to the standby process of a node; the scheduler may start it later than the chief."""
    secret, end = job_secret(), time.monotonic() + deadline
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=_HANDSHAKE_SECONDS)
            try:
                shake_hands(connection, secret, b"chief", b"agent")
                connection.settimeout(None)
                return connection
            except BaseException:
                connection.close()
                raise
        except ValueError:
            raise LaunchError(
                address, f"the program that answers on port {port} is not an agent of this job: set the same {SECRET} "
                "on all machines"
            ) from None
        except OSError as error:
            if time.monotonic() > end:
                raise LaunchError(
                    address,
                    f"no agent answered on port {port} within {deadline:.0f} s ({error.strerror or error}): the "
                    "scheduler starts it with 'autodist agent', or with the same script",
                ) from None
            time.sleep(_RETRY_SECONDS)
