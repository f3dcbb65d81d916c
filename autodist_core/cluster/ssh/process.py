"""A program that runs on another machine: its standard streams, in bytes, and its exit status."""

from typing import Any


class Process:
    """A running program. Read both of its outputs: they share a window of 2 MB, and an unread one blocks the other.

    A read waits as long as the connection is open; a connection whose other end does not answer is closed. The bytes
    end when the program ends or the connection is lost; ``connection.alive`` tells which.
    """

    def __init__(self, channel: Any, host: str) -> None:
        self._channel = channel
        self.host = host
        self.stdin = channel.makefile_stdin("wb")
        self.stdout = channel.makefile("rb")
        self.stderr = channel.makefile_stderr("rb")

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the program and return its exit status; a TimeoutError after ``timeout`` seconds.

        The status is -1 if a signal ended the program, or if the connection was lost.
        """
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError(f"{self.host}: the program has not ended within {timeout:g} s.")
        return int(self._channel.exit_status)

    def close(self) -> None:
        """Close the streams: a program that reads its input sees the end of it, and other programs run on."""
        self._channel.close()
