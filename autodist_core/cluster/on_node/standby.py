"""Agents that a scheduler starts: each waits at a port for its chief, instead of being started over ssh.

Chief and agents prove to each other that they know the AUTODIST_SECRET of their job, and the connection is the control
path. An agent serves one run and ends; `stand_by` starts another for the next one, until a chief is done for good.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time

from autodist_core.cluster.protocol.probes import bind, shake_hands
from autodist_core.errors import LaunchError
from autodist_core.resource_spec import ResourceSpec

_log = logging.getLogger("autodist")

SECRET = "AUTODIST_SECRET"
WAIT_SECONDS, LINGER_SECONDS = 600.0, 30.0
_PATIENCE, _GRACE = 10.0, 5.0


def secret() -> bytes:
    """The secret that the processes of a job share."""
    text = os.environ.get(SECRET, "")
    if len(text) < 16:
        raise LaunchError(
            "",
            f"{SECRET} is {'too short' if text else 'not set'}: agents that a scheduler starts and their chief need "
            "the same one, of at least 16 characters, in their environment. In a batch script, before they start: "
            f"export {SECRET}=$(openssl rand -hex 32)"
        )
    return text.encode()


class StandingAgent:
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


def stand_by_unless_chief(spec: ResourceSpec) -> None:
    """Return on the chief only; in a process that the scheduler started elsewhere, be an agent there and exit."""
    if not spec.chief_elsewhere:
        return
    if spec.own_port is None:
        _log.warning("Another task of this machine is its agent; this one ends.")
        raise SystemExit(0)
    _log.info("Waiting as an agent at port %d for the chief, %s.", spec.own_port, spec.chief.address)
    raise SystemExit(stand_by(spec.own_port))


def stand_by(port: int, wait: float = WAIT_SECONDS, linger: float = LINGER_SECONDS) -> int:
    """Serve the runs of one job at a port; returns an exit status when no chief comes (any more).

    The first chief may take `wait` seconds to come, and so may one that comes again after its connection broke; after
    a run that ended in order, the next one has `linger` seconds.
    """
    known, listener = secret(), bind([port])
    if threading.current_thread() is threading.main_thread():
        # A scheduler ends a job by this signal: the agent goes with the one who stands by for it.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    patience = wait
    while True:
        connection = _next_chief(listener, known, patience)
        if connection is None:
            return 0 if patience == linger else 1
        status = _serve(connection)
        patience = linger if status == 0 else wait


def _next_chief(listener: socket.socket, known: bytes, patience: float) -> socket.socket | None:
    deadline = time.monotonic() + patience
    while (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            connection, peer = listener.accept()
        except TimeoutError:
            break
        try:
            connection.settimeout(_PATIENCE)
            shake_hands(connection, known, b"agent", b"chief")
            connection.settimeout(None)
            return connection
        except (OSError, ValueError) as error:
            _log.warning("%s connected and is not the chief of this job: %s.", peer[0], error)
            connection.close()
    _log.warning("No chief came within %.0f s.", patience)
    return None


def _serve(connection: socket.socket) -> int:
    """One run: a process of its own, since a TensorFlow server cannot be stopped."""
    with connection:
        pipe = connection.fileno()
        agent = subprocess.Popen([sys.executable, "-m", "autodist_core.cluster.on_node.agent"], stdin=pipe, stdout=pipe)
        try:
            while agent.poll() is None:
                time.sleep(0.1)
                if _hung_up(connection):
                    agent.wait(_GRACE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            agent.kill()
        return agent.wait()


def _hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _connect(address: str, port: int, deadline: float) -> socket.socket:
    """A connection to an agent, which may still be on its way."""
    known, end = secret(), time.monotonic() + deadline
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
