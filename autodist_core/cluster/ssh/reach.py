"""A stream of bytes to an ssh server: over TCP, or through a program (ssh's ``ProxyCommand``), before a deadline."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


class Unreachable(Exception):
    """A server cannot be reached or refuses the login; the text is a message for the user.

    >>> with socket.create_server(("127.0.0.1", 0)) as server:
    ...     port = server.getsockname()[1]
    >>> try:
    ...     tcp("127.0.0.1", port, "any", Deadline(5))
    ... except Unreachable as error:
    ...     print(str(error).partition(": ")[2])
    the machine answers, and no ssh server listens there. Start it, or correct 'port'
    """


class Deadline:
    """A moment by which all waits of one task end.

    >>> Deadline(30).left > 29
    True
    >>> Deadline(30).sooner(5).seconds
    5
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """The seconds left, at least a millisecond: for a socket, a timeout of 0 means no wait at all."""
        return max(self._end - time.monotonic(), 0.001)

    @property
    def passed(self) -> bool:
        """Whether the moment has passed."""
        return time.monotonic() >= self._end

    def sooner(self, seconds: float | None) -> Deadline:
        """This deadline, or one ``seconds`` from now if that is sooner."""
        return self if seconds is None or seconds >= self.left else Deadline(seconds)


def within(deadline: Deadline, function: Callable[[], T]) -> T:
    """Call a function that has no timeout of its own; a TimeoutError if it has not returned by the deadline.

    The function then goes on in a thread of its own, and its result is not used.

    >>> within(Deadline(0.05), lambda: time.sleep(0.2))
    Traceback (most recent call last):
    TimeoutError
    """
    outcome = Future[T]()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(deadline.left)


@contextlib.contextmanager
def closing_after(seconds: float, close: Callable[[], object]) -> Iterator[None]:
    """Call `close` after some seconds, unless the block ends before: for waits without a timeout that `close` ends.

    >>> here, there = socket.socketpair()
    >>> with closing_after(0.05, lambda: here.shutdown(socket.SHUT_RDWR)):
    ...     here.recv(1)
    b''
    >>> here.close(), there.close()
    (None, None)
    """
    timer = threading.Timer(seconds, close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def tcp(host: str, port: int, family: str, deadline: Deadline) -> socket.socket:
    """Connect to the first address of ``host`` that answers; `Unreachable` says why none does.

    >>> with socket.create_server(("127.0.0.1", 0)) as server:
    ...     tcp("127.0.0.1", server.getsockname()[1], "any", Deadline(5)).close()
    """
    wanted = _FAMILIES.get(family, socket.AF_UNSPEC)
    try:
        found = within(deadline, lambda: socket.getaddrinfo(host, port, wanted, socket.SOCK_STREAM))
    except (socket.gaierror, UnicodeError) as error:
        why = getattr(error, "strerror", error)
        raise Unreachable(
            f"the name '{host}' does not resolve ({why}): write an address, or a name that this machine knows"
        ) from None
    except TimeoutError:
        raise Unreachable(
            f"the name '{host}' was not resolved within {deadline.seconds:g} s: is the network up?"
        ) from None
    reasons = []
    for position, (kind, _, _, _, address) in enumerate(found):
        connection = socket.socket(kind, socket.SOCK_STREAM)
        connection.settimeout(deadline.left / (len(found) - position))
        try:
            connection.connect(address)
        except OSError as error:
            connection.close()
            reasons.append((str(address[0]), error))
            continue
        # Orders and answers are small, and the sender waits for each: they are not held back.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    raise Unreachable("; ".join(_why(*reason, host, port, deadline) for reason in reasons))


def _why(address: str, error: OSError, host: str, port: int, deadline: Deadline) -> str:
    where = f"port {port}" if address == host else f"port {port} of {address}"
    if isinstance(error, ConnectionRefusedError):
        return f"{where} is closed: the machine answers, and no ssh server listens there. Start it, or correct 'port'"
    if isinstance(error, TimeoutError):
        return (
            f"no answer from {where} within {deadline.seconds:g} s: the machine is off, cut off, or behind a firewall "
            "that drops connections"
        )
    return f"no route to {where} ({error.strerror}): the machine is off, or this one is not in its network"


class Program:
    """A program that carries the stream over its standard input and output.

    >>> program = Program("cat")
    >>> program.socket.sendall(b"echo")
    >>> program.socket.recv(4)
    b'echo'
    >>> program.close()
    """

    def __init__(self, command: str) -> None:
        self.command = command
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.socket, theirs = socket.socketpair()
        with theirs:
            # In a session of its own, so that Ctrl-C in the terminal does not end it.
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors,
                start_new_session=True,
            )

    def outcome(self) -> str:
        """How the program ended and the last line of its log; empty while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        if self._process.returncode is None:
            return ""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"it ended with {self._process.returncode}" + (f": {said[-1]}" if said else "")

    def close(self) -> None:
        """Close the stream, and kill the program if it does not end then."""
        self.socket.close()
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
