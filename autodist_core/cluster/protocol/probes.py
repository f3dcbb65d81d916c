"""Probes of the network: whether each node reaches each other node, and how fast, before TensorFlow depends on it.

Each node has a `Listener` on the port that its TensorFlow server will use. `reach` tests whether listeners answer, and
`measure` measures the link to one of them. Both ends prove by a handshake that they belong to this run. The listener
notes the addresses of its visitors, and the filter of ``on_node.admission`` later lets only these addresses connect.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from autodist_core.cluster.protocol.handshake import receive_exactly, shake_hands
from autodist_core.cluster.protocol.sockets import listening_socket, plain_address

_ANSWER_SECONDS = 5.0
_TRIPS = 20
_CHUNK = 1 << 18
_PING, _PONG = b"?", b"!"
REMEDY = "Let the firewalls between the nodes pass the ports of AUTODIST_PORTS, or correct the address"


class Listener:
    """Holds a port for the TensorFlow server, answers programs that know the secret, and notes their addresses.

    >>> listener = Listener("of this run")
    >>> listener.port > 0, listener.visitors
    (True, [])
    >>> listener.close()
    """

    def __init__(self, secret: str, ports: Sequence[int] = ()) -> None:
        self._secret = secret.encode()
        self._visitors: dict[str, None] = {}
        self._socket = listening_socket(ports)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def visitors(self) -> list[str]:
        """The addresses of the programs that connected and knew the secret; the address of the latest visit is last."""
        return list(self._visitors)

    def close(self) -> None:
        """Release the port."""
        # The thread in `accept` keeps the socket listening until the socket is shut down.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, peer = self._socket.accept()
                threading.Thread(target=self._answer, args=(connection, peer[0]), daemon=True).start()

    def _answer(self, connection: socket.socket, peer: str) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            connection.settimeout(_ANSWER_SECONDS)
            shake_hands(connection, self._secret, b"listener", b"caller")
            visitor = str(plain_address(peer))
            self._visitors.pop(visitor, None)
            self._visitors[visitor] = None
            connection.sendall(_PONG)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while chunk := connection.recv(_CHUNK):
                if chunk.endswith(_PING):
                    connection.sendall(_PONG)


def reach(secret: str, peers: Sequence[tuple[str, int]], seconds: float) -> list[str | None]:
    """Try to reach the listeners of all peers in parallel; for each peer None, or why it was not reached in time.

    >>> listener = Listener("of this run")
    >>> reach("of this run", [("127.0.0.1", listener.port)], 5), listener.visitors
    ([None], ['127.0.0.1'])
    >>> reach("of another run", [("127.0.0.1", listener.port)], 5)
    ['the program that answers does not belong to this run']
    >>> listener.close()
    """

    def problem(peer: tuple[str, int]) -> str | None:
        try:
            _connect(secret, peer, seconds).close()
        except ValueError as error:
            return str(error)
        except OSError as error:
            return f"{_why(error, seconds)}. {REMEDY}"
        return None

    with ThreadPoolExecutor(max(1, len(peers))) as pool:
        return list(pool.map(problem, peers))


def measure(secret: str, peer: tuple[str, int], seconds: float) -> dict[str, Any]:
    """Measure the link to a peer's listener: round trip in seconds (the median of 20), and bits per second sent to it.

    The bandwidth is measured for `seconds`. If the measurement fails, the result has the key `problem` only.

    >>> listener = Listener("of this run")
    >>> found = measure("of this run", ("127.0.0.1", listener.port), 0.05)
    >>> found["round_trip"] < 1 and found["bits_per_second"] > 1e6
    True
    >>> listener.close()
    """
    try:
        with _connect(secret, peer, _ANSWER_SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_ANSWER_SECONDS + seconds)
            trips = sorted(_round_trip(connection) for _ in range(_TRIPS))
            chunk, sent, start = bytes(_CHUNK), 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                connection.sendall(chunk)
                sent += len(chunk)
            _round_trip(connection)  # all that was sent has arrived when this ping is answered
            elapsed = time.perf_counter() - start
            return {"round_trip": trips[len(trips) // 2], "bits_per_second": 8 * sent / elapsed}
    except (OSError, ValueError) as error:
        return {"problem": _why(error, _ANSWER_SECONDS + seconds)}


def _why(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    return str(getattr(error, "strerror", None) or error)


def _round_trip(connection: socket.socket) -> float:
    start = time.perf_counter()
    connection.sendall(_PING)
    if connection.recv(1) != _PONG:
        raise ConnectionError("the other end closed the connection")
    return time.perf_counter() - start


def _connect(secret: str, peer: tuple[str, int], seconds: float) -> socket.socket:
    connection = socket.create_connection(peer, timeout=seconds)
    try:
        shake_hands(connection, secret.encode(), b"caller", b"listener")
        receive_exactly(connection, 1)  # the listener has noted the visit
    except BaseException:
        connection.close()
        raise
    return connection
