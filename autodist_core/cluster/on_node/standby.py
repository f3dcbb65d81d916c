"""The process that a scheduler starts on a node: it waits at a port for the chief and starts an agent for each run.

In: the port, and the secret of the job from the environment. Chief and node prove to each other that they know the
secret; then their connection becomes the pipes of a new agent. An agent serves one run and ends, because a TensorFlow
server cannot be stopped. Out: an exit status, when no chief has come for some time.
"""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time

from autodist_core.cluster.protocol.handshake import job_secret, shake_hands
from autodist_core.cluster.protocol.messages import AGENT_MODULE
from autodist_core.cluster.protocol.sockets import listening_socket
from autodist_core.log import log
from autodist_core.resource_spec import ResourceSpec

WAIT_SECONDS, LINGER_SECONDS = 600.0, 30.0
_HANDSHAKE_SECONDS, _END_SECONDS, _POLL_SECONDS = 10.0, 5.0, 0.1


def become_agent_unless_chief(spec: ResourceSpec) -> None:
    """Return in the chief's process; in every other process of the scheduler's job, serve as an agent and exit.

    >>> become_agent_unless_chief(ResourceSpec.local())
    """
    if not spec.chief_elsewhere:
        return
    if spec.own_port is None:
        log.warning("Another task of this machine is its agent; this process ends.")
        raise SystemExit(0)
    log.info("Waiting as an agent at port %d for the chief, %s.", spec.own_port, spec.chief.address)
    raise SystemExit(stand_by(spec.own_port))


def stand_by(port: int, wait: float = WAIT_SECONDS, linger: float = LINGER_SECONDS) -> int:
    """Serve the runs of one job at a port, one after the other; return an exit status when no further run comes.

    The chief has `wait` seconds to connect for the first time, and again after a connection that broke. After a run
    that ended in order, it has `linger` seconds to connect for the next one.
    """
    secret, listener = job_secret(), listening_socket([port])
    if threading.current_thread() is threading.main_thread():
        # A scheduler ends a job by this signal; the exit ends the agent that this process started.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    seconds = wait
    while connection := _next_chief(listener, secret, seconds):
        seconds = linger if _serve(connection) == 0 else wait
    return 0 if seconds == linger else 1


def _next_chief(listener: socket.socket, secret: bytes, seconds: float) -> socket.socket | None:
    """The connection of a chief that knows the secret; None if no chief came in time."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            connection, peer = listener.accept()
        except TimeoutError:
            break
        try:
            connection.settimeout(_HANDSHAKE_SECONDS)
            shake_hands(connection, secret, b"agent", b"chief")
            connection.settimeout(None)
            return connection
        except (OSError, ValueError) as error:
            log.warning("%s connected and is not the chief of this job: %s.", peer[0], error)
            connection.close()
    log.warning("No chief came within %.0f s.", seconds)
    return None


def _serve(connection: socket.socket) -> int:
    """Run one agent whose pipes are the connection, and return its exit status; kill it when the chief hung up."""
    with connection:
        descriptor = connection.fileno()
        agent = subprocess.Popen([sys.executable, "-m", AGENT_MODULE], stdin=descriptor, stdout=descriptor)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                while agent.poll() is None:
                    time.sleep(_POLL_SECONDS)
                    if _hung_up(connection):
                        agent.wait(_END_SECONDS)
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
