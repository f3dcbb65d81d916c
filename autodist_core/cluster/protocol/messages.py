"""The messages between the chief and one agent: one JSON object a line, over the two pipes of one process or socket.

The chief sends orders, ``{"do": "describe", "id": 3, "with": {}}``, and heartbeats, ``{"do": "beat"}``. The agent sends
answers, ``{"answer": 3, "result": {...}}``, and heartbeats with its clock, ``{"beat": 1700000000.0}``. Only the two
processes hold the pipes, so a message cannot reach another run. Only plain data is read: nothing is unpickled.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from io import RawIOBase
from typing import IO, Any

Message = dict[str, Any]

AGENT_MODULE = "autodist_core.cluster.on_node.agent"
"""The module that a Python interpreter runs as an agent: ``python -m`` followed by this name."""


class Sender:
    r"""Writes messages to a stream; several threads may send, and each message stays in one piece.

    >>> import io
    >>> stream = io.BytesIO()
    >>> Sender(stream).send({"do": "describe"})
    >>> stream.getvalue()
    b'{"do":"describe"}\n'
    """

    def __init__(self, stream: IO[bytes] | RawIOBase) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Write one message; OSError or ValueError when the other end is gone."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._stream.write(line)
            self._stream.flush()


def receive(stream: Iterable[bytes], on_other_line: Callable[[str], object] | None = None) -> Iterator[Message]:
    """Yield the messages of a stream until the stream ends; a line that is not a message is a ValueError.

    A login shell may print lines before the first message. `on_other_line` is called with each of them; without it,
    they are errors too.

    >>> import io
    >>> list(receive(io.BytesIO(b'{"do":"describe"}\\n')))
    [{'do': 'describe'}]
    >>> list(receive(io.BytesIO(b'Welcome to this machine!\\n{"beat":1}\\n'), print))
    Welcome to this machine!
    [{'beat': 1}]
    """
    for line in stream:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if isinstance(message, dict):
            on_other_line = None
            yield message
        elif on_other_line is None:
            raise ValueError(f"expected a message, received {line[:200]!r}")
        else:
            on_other_line(line.decode(errors="replace").rstrip())
