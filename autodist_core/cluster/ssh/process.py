"""A program on another machine: its standard streams, in bytes, and how it ended."""

from __future__ import annotations

import contextlib
import time
from typing import Any

__all__ = ["Process", "Reader", "Writer"]

# A channel has one timeout for both directions, so it is set once, and each stream counts its own time.
TICK = 0.2
_CHUNK = 1 << 16


def _end(timeout: float | None) -> float:
    return float("inf") if timeout is None else time.monotonic() + timeout


class Reader:
    """Bytes from the program. A read that times out loses nothing: the next one begins where this one began.

    Without a ``timeout`` a read waits as long as the connection lives, and a connection without answers is closed. The
    bytes end with the program or with the connection, which ``connection.alive`` tells apart.
    """

    def __init__(self, receive: Any, what: str) -> None:
        self._receive, self._what = receive, what
        self._buffer = bytearray()
        self._ended = False
        self.timeout: float | None = None
        """Seconds that a read waits for each new piece of data, then TimeoutError; ``None`` waits on."""

    def read(self, size: int = -1) -> bytes:
        """``size`` bytes, fewer only at the end; all of them if negative."""
        while (size < 0 or len(self._buffer) < size) and self._more():
            pass
        return self._take(len(self._buffer) if size < 0 else size)

    def readline(self) -> bytes:
        """A line with its newline, which only the last may lack; empty at the end."""
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
    """Bytes to the program; nothing is kept back, so ``flush`` has nothing to do."""

    def __init__(self, channel: Any, what: str) -> None:
        self._channel, self._what = channel, what
        self.timeout: float | None = None
        """Seconds that a write waits for the program to take more, then TimeoutError; ``None`` waits on."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Send all of it, and return how much that was; BrokenPipeError when the program takes no more."""
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
        """For those who expect a file."""

    def close(self) -> None:
        """Tell the program that nothing more comes."""
        with contextlib.suppress(OSError):
            self._channel.shutdown_write()


class Process:
    """A running program. Read both of its outputs: they share a window of 2 MB, and one left unread stops the other."""

    def __init__(self, channel: Any, host: str) -> None:
        channel.settimeout(TICK)
        self._channel = channel
        self.host = host
        self.stdin = Writer(channel, f"{host}, stdin")
        self.stdout = Reader(channel.recv, f"{host}, stdout")
        self.stderr = Reader(channel.recv_stderr, f"{host}, stderr")

    @property
    def exit_status(self) -> int | None:
        """``None`` while it runs; -1 when a signal ended it or the connection is gone."""
        return int(self._channel.exit_status) if self._channel.exit_status_ready() else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status; TimeoutError after ``timeout`` seconds."""
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError(f"{self.host}: the program has not ended within {timeout:g} s.")
        return int(self._channel.exit_status)

    def close(self) -> None:
        """Close its streams: a program that reads its input ends then, others are not told."""
        self._channel.close()
