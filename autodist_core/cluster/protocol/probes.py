"""Whether nodes reach each other, before TensorFlow needs it: a listener on every node, and questions to it.

Both ends prove that they belong to this run: each answers the other's random number with a keyed hash of it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from autodist_core.cluster.protocol.handshake import receive_exactly, shake_hands
from autodist_core.cluster.protocol.sockets import listening_socket, plain_address

_PATIENCE = 5.0
_CHUNK = 1 << 18
_REMEDY = "Let the firewalls between the nodes pass the ports of AUTODIST_PORTS, or correct the address"


class Listener:
    """Holds a port until the server takes it, and notes from which addresses those come who know the secret."""

    def __init__(self, secret: str, ports: Sequence[int] = ()) -> None:
        self._secret = secret.encode()
        self._visitors: dict[str, None] = {}
        self._socket = listening_socket(ports)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def visitors(self) -> list[str]:
        """The addresses of those who knew the secret, that of the latest visit last."""
        return list(self._visitors)

    def close(self) -> None:
        """Give the port back."""
        # A thread in accept keeps the socket listening until it is shut down.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection, peer[0]), daemon=True).start()

    def _answer(self, connection: socket.socket, peer: str) -> None:
        with connection:
            try:
                connection.settimeout(_PATIENCE)
                shake_hands(connection, self._secret, b"listener", b"caller")
                visitor = str(plain_address(peer))
                self._visitors.pop(visitor, None)
                self._visitors[visitor] = None
                connection.sendall(b"!")
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while chunk := connection.recv(_CHUNK):
                    if chunk.endswith(b"?"):
                        connection.sendall(b"!")
            except (OSError, ValueError):
                return


def reach(secret: str, peers: Sequence[tuple[str, int]], seconds: float) -> list[str | None]:
    """For each listener None if it answers within the time, else what went wrong.

    >>> listener = Listener("of this run")
    >>> reach("of this run", [("127.0.0.1", listener.port)], 5), listener.visitors
    ([None], ['127.0.0.1'])
    >>> reach("of another run", [("127.0.0.1", listener.port)], 5)
    ['something answers there that is not of this run']
    >>> listener.close()
    """

    def problem(peer: tuple[str, int]) -> str | None:
        try:
            _connect(secret, peer, seconds).close()
        except ValueError as error:
            return str(error)
        except OSError as error:
            return f"{_why(error, seconds)}. {_REMEDY}"
        return None

    with ThreadPoolExecutor(max(1, len(peers))) as pool:
        return list(pool.map(problem, peers))


def measure(secret: str, peer: tuple[str, int], seconds: float) -> dict[str, Any]:
    """Round trip in seconds (the median of 20) and bits a second towards a listener, or the `problem` with it.

    >>> listener = Listener("of this run")
    >>> found = measure("of this run", ("127.0.0.1", listener.port), 0.05)
    >>> found["round_trip"] < 1 and found["bits_per_second"] > 1e6
    True
    >>> listener.close()
    """
    try:
        with _connect(secret, peer, _PATIENCE) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_PATIENCE + seconds)
            trips = sorted(_ask(connection) for _ in range(20))
            chunk, sent, start = bytes(_CHUNK), 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                connection.sendall(chunk)
                sent += len(chunk)
            _ask(connection)  # what was sent has arrived when this is answered
            elapsed = time.perf_counter() - start
            return {"round_trip": trips[len(trips) // 2], "bits_per_second": 8 * sent / elapsed}
    except (OSError, ValueError) as error:
        return {"problem": _why(error, _PATIENCE + seconds)}


def _why(error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    return str(getattr(error, "strerror", None) or error)


def _ask(connection: socket.socket) -> float:
    start = time.perf_counter()
    connection.sendall(b"?")
    if connection.recv(1) != b"!":
        raise ConnectionError("the other end closed the connection")
    return time.perf_counter() - start


def _connect(secret: str, peer: tuple[str, int], seconds: float) -> socket.socket:
    connection = socket.create_connection(peer, timeout=seconds)
    try:
        shake_hands(connection, secret.encode(), b"caller", b"listener")
        receive_exactly(connection, 1)  # the visit is noted
    except BaseException:
        connection.close()
        raise
    return connection
