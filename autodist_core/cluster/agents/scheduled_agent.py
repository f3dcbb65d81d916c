"""An agent that a scheduler started: the chief's connection to it."""

from __future__ import annotations

import io
import socket
import time

from autodist_core.cluster.protocol.handshake import SECRET, job_secret, shake_hands
from autodist_core.errors import LaunchError

_PATIENCE = 10.0


class ScheduledAgent:
    """The chief's connection to an agent that waits at a port: a `Process` by its pipes."""

    connection = None

    def __init__(self, address: str, port: int, deadline: float) -> None:
        self._socket = _connect(address, port, deadline)
        self.stdin = self._socket.makefile("wb", buffering=0)
        self.stdout = self._socket.makefile("rb")
        # What it logs stands in the scheduler's log of that node.
        self.stderr = io.BytesIO()

    def ending(self, timeout: float) -> str:
        """How it ended: not known from here."""
        return "its agent ended, or the connection to it (the scheduler's log of that node may say why)"

    def kill(self, pid: int, started: int) -> None:
        """What waits there ends an agent whose chief has hung up."""

    def close(self) -> None:
        """Hang up."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _connect(address: str, port: int, deadline: float) -> socket.socket:
    """A connection to an agent, which may still be on its way."""
    known, end = job_secret(), time.monotonic() + deadline
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=_PATIENCE)
            try:
                shake_hands(connection, known, b"chief", b"agent")
                connection.settimeout(None)
                return connection
            except BaseException:
                connection.close()
                raise
        except ValueError:
            raise LaunchError(
                address, f"what answers on port {port} is no agent of this job: is {SECRET} the same there?"
            ) from None
        except OSError as error:
            if time.monotonic() > end:
                raise LaunchError(
                    address,
                    f"no agent answered on port {port} within {deadline:.0f} s ({error.strerror or error}): the "
                    "scheduler starts it with 'autodist agent', or with the same script",
                ) from None
            time.sleep(0.5)
