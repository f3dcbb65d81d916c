"""Agents that a scheduler starts: each waits at a port for its chief, instead of being started over ssh.

Chief and agents prove to each other that they know the AUTODIST_SECRET of their job, and the connection is the control
path. An agent serves one run and ends; `stand_by` starts another for the next one, until a chief is done for good.
"""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
import time

from autodist_core.cluster.protocol.handshake import job_secret, shake_hands
from autodist_core.cluster.protocol.messages import AGENT_MODULE
from autodist_core.cluster.protocol.sockets import listening_socket
from autodist_core.resource_spec import ResourceSpec

_log = logging.getLogger("autodist")

WAIT_SECONDS, LINGER_SECONDS = 600.0, 30.0
_PATIENCE, _GRACE = 10.0, 5.0


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
    known, listener = job_secret(), listening_socket([port])
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
        agent = subprocess.Popen([sys.executable, "-m", AGENT_MODULE], stdin=pipe, stdout=pipe)
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
