"""The control path between a chief and an agent: one JSON object a line, over the pipes of one process.

Whoever holds the pipes is the other end, so a message cannot reach another run; and nothing but plain data is read.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import IO, Any

LIMIT = 1 << 20
"""The most bytes of a message; what is longer is no message of ours."""

Message = dict[str, Any]


class Sender:
    """Writes messages from several threads, each whole."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Write one message; OSError or ValueError when the other end is gone."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._stream.write(line)
            self._stream.flush()


def received(stream: IO[bytes]) -> Iterator[Message]:
    """The messages of a stream until it ends; a ValueError says what came instead of one.

    >>> import io
    >>> list(received(io.BytesIO(b'{"do":"describe"}\\n')))
    [{'do': 'describe'}]
    """
    while line := stream.readline(LIMIT):
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise ValueError(f"expected a message, received {line[:200]!r}")
        yield message
