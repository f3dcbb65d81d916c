"""A program that runs on another machine: its standard streams, in bytes, and its exit status."""

from __future__ import annotations

import contextlib
import time
from typing import Any

__all__ = ["Process", "Reader", "Writer"]

# A channel has one timeout for both directions. It is set to this short time, and each stream counts its own time.
POLL_SECONDS = 0.2
_CHUNK = 1 << 16


def _end(timeout: float | None) -> float:
    return float("inf") if timeout is None else time.monotonic() + timeout


class Reader:
    r"""Bytes from the program. A read that times out loses nothing: the next read begins with the same byte.

    Without a ``timeout``, a read waits as long as the connection is open; a connection whose other end does not answer
    is closed. The bytes end when the program ends or the connection is lost; ``connection.alive`` tells which.

    >>> chunks = iter([b"two li", b"nes\nrest", b""])
    >>> reader = Reader(lambda size: next(chunks), "10.0.0.2, stdout")
    >>> reader.readline(), reader.read()
    (b'two lines\n', b'rest')
    """

    def __init__(self, receive: Any, what: str) -> None:
        self._receive, self._what = receive, what
        self._buffer = bytearray()
        self._ended = False
        self.timeout: float | None = None
        """Seconds that a read waits for each piece of data before a TimeoutError; ``None`` for no limit."""

    def read(self, size: int = -1) -> bytes:
        """Read ``size`` bytes, or fewer at the end; read until the end if ``size`` is negative."""
        while (size < 0 or len(self._buffer) < size) and self._more():
            pass
        return self._take(len(self._buffer) if size < 0 else size)

    def readline(self) -> bytes:
        """Read a line with its newline, which only the last line may lack; empty at the end."""
        searched = 0
        while (found := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if not self._more():
                return self._take(searched)
        return self._take(found + 1)

    def _more(self) -> bool:
        end = _end(self.timeout)
        while not self._ended:
            try:
                data = self._receive(_CHUNK)
            except TimeoutError:
                if time.monotonic() >= end:
                    raise TimeoutError(f"{self._what}: nothing came within {self.timeout:g} s.") from None
                continue
            self._ended = not data
            self._buffer += data
            return bool(data)
        return False

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken


class Writer:
    """Bytes to the program; they are sent at once, without a buffer.

    >>> import socket
    >>> here, there = socket.socketpair()
    >>> Writer(here, "10.0.0.2, stdin").write(b"two lines")
    9
    >>> there.recv(100)
    b'two lines'
    >>> there.close()
    >>> Writer(here, "10.0.0.2, stdin").write(b"two lines")
    Traceback (most recent call last):
    BrokenPipeError: 10.0.0.2, stdin: the program takes no more, or the connection is lost.
    >>> here.close()
    """

    def __init__(self, channel: Any, what: str) -> None:
        self._channel, self._what = channel, what
        self.timeout: float | None = None
        """Seconds that a write waits for the program to read before a TimeoutError; ``None`` for no limit."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Send all bytes and return their number; a BrokenPipeError if the program does not read any more."""
        left = memoryview(data).cast("B")
        end = _end(self.timeout)
        while left:
            try:
                sent = self._channel.send(left[:_CHUNK].tobytes())
            except TimeoutError:
                if time.monotonic() >= end:
                    raise TimeoutError(f"{self._what}: it took nothing within {self.timeout:g} s.") from None
                continue
            except OSError:
                sent = 0
            if not sent:
                raise BrokenPipeError(f"{self._what}: the program takes no more, or the connection is lost.")
            left = left[sent:]
            end = _end(self.timeout)
        return len(data)

    def flush(self) -> None:
        """Do nothing: `write` has sent all bytes. Callers that expect a file call it."""

    def close(self) -> None:
        """End the program's input."""
        with contextlib.suppress(OSError):
            self._channel.shutdown_write()


class Process:
    """A running program. Read both of its outputs: they share a window of 2 MB, and an unread one blocks the other."""

    def __init__(self, channel: Any, host: str) -> None:
        channel.settimeout(POLL_SECONDS)
        self._channel = channel
        self.host = host
        self.stdin = Writer(channel, f"{host}, stdin")
        self.stdout = Reader(channel.recv, f"{host}, stdout")
        self.stderr = Reader(channel.recv_stderr, f"{host}, stderr")

    @property
    def exit_status(self) -> int | None:
        """The exit status; ``None`` while the program runs; -1 if a signal ended it or the connection was lost."""
        return int(self._channel.exit_status) if self._channel.exit_status_ready() else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the program and return its exit status; a TimeoutError after ``timeout`` seconds."""
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError(f"{self.host}: the program has not ended within {timeout:g} s.")
        return int(self._channel.exit_status)

    def close(self) -> None:
        """Close the streams: a program that reads its input sees the end of it, and other programs run on."""
        self._channel.close()
