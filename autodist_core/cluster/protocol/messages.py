"""The control path between a chief and an agent: one JSON object a line, over the pipes of one process.

Whoever holds the pipes is the other end, so a message cannot reach another run; and nothing but plain data is read.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

Message = dict[str, Any]

AGENT_MODULE = "autodist_core.cluster.on_node.agent"
"""The module that a Python interpreter runs as an agent."""


class Lines(Protocol):
    """What is read line by line; an empty line is its end."""

    def readline(self) -> bytes:
        """The next line with its newline."""


class Sink(Protocol):
    """What takes bytes."""

    def write(self, data: bytes, /) -> object:
        """Take them all."""

    def flush(self) -> None:
        """Send them."""

    def close(self) -> None:
        """Say that there are no more."""


class Sender:
    """Writes messages from several threads, each whole."""

    def __init__(self, stream: Sink) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Write one message; OSError or ValueError when the other end is gone."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._stream.write(line)
            self._stream.flush()


def received(stream: Lines, aside: Callable[[str], object] | None = None) -> Iterator[Message]:
    """The messages of a stream until it ends; a ValueError says what came instead of one.

    What a login shell prints before the first message goes `aside`, if there is such a place.

    >>> import io
    >>> list(received(io.BytesIO(b'{"do":"describe"}\\n')))
    [{'do': 'describe'}]
    >>> list(received(io.BytesIO(b'Welcome to this machine!\\n{"beat":1}\\n'), print))
    Welcome to this machine!
    [{'beat': 1}]
    """
    while line := stream.readline():
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if isinstance(message, dict):
            aside = None
            yield message
        elif aside is None:
            raise ValueError(f"expected a message, received {line[:200]!r}")
        else:
            aside(line.decode(errors="replace").rstrip())
