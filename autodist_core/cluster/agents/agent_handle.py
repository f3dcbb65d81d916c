"""One agent as the chief sees it: orders and answers, signs of life, and the last lines of its log."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import threading
import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import TYPE_CHECKING, Any

from autodist_core.cluster.agents.agent_process import AgentProcess
from autodist_core.cluster.protocol.messages import Message, Sender, received
from autodist_core.errors import LaunchError
from autodist_core.resource_spec import Node

if TYPE_CHECKING:  # paramiko is needed on the chief only, and agents import this module too
    from autodist_core.cluster.ssh import Connection

LOG_LINES = 20
_USUAL = re.compile(r"WARNING: All log messages before|[IW]\d{4} \d\d:|E\d{4} \d\d:.*cuda")
"""What TensorFlow says at every start, and what is no reason for an end."""


class AgentHandle:
    """The chief's end of one agent."""

    def __init__(self, node: Node, process: AgentProcess) -> None:
        self.node = node
        self.process = process
        self.last_heard = time.monotonic()
        self.description: Message = {}
        self._identity = 0, 0
        self.clock_offset: float | None = None
        """Seconds by which its clock is ahead of this one, less what its fastest message needed to come here."""
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self._sender = Sender(process.stdin)
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Message]] = {}
        self._logger = logging.getLogger(f"autodist.{node.address.replace('.', '_')}")
        self._ended = threading.Event()
        self._readers = [
            threading.Thread(target=target, daemon=True, name=f"autodist-{what}-{node.address}")
            for what, target in (("answers", self._read_answers), ("log", self._read_log))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def connection(self) -> Connection | None:
        """The ssh connection to its machine, if there is one."""
        return self.process.connection

    @property
    def ended(self) -> bool:
        """Whether it is gone, as far as its pipes tell."""
        return self._ended.is_set()

    def ask(self, do: str, seconds: float, /, **arguments: Any) -> Message:
        """Let it do something, and wait so long for the answer."""
        number, answer = next(self._numbers), Future[Message]()
        self._waiting[number] = answer
        try:
            self._sender.send({"do": do, "id": number, "with": arguments})
            if self.ended:
                raise LaunchError(self.node.address, self.epitaph())
            found = answer.result(seconds)
        except NotInTime:
            raise LaunchError(
                self.node.address,
                f"its agent did not answer '{do}' within {seconds:g} s: the machine hangs, or the network is "
                f"down{self.last_words()}"
            ) from None
        except (OSError, ValueError) as error:
            if isinstance(error, LaunchError):
                raise
            self._ended.wait(2)
            raise LaunchError(self.node.address, self.epitaph()) from None
        finally:
            self._waiting.pop(number, None)
        if "error" in found:
            raise LaunchError(self.node.address, f"its agent could not do '{do}': {found['error']}")
        return dict(found["result"])

    def beat(self) -> None:
        """Tell it that the chief is there."""
        with contextlib.suppress(OSError, ValueError):  # the watch sees the end of its answers
            self._sender.send({"do": "beat"})

    def epitaph(self) -> str:
        """That it ended, how, and its last words."""
        # Its answers end before its log has been read to the end, and why it ended is said last.
        self._readers[-1].join(1)
        return (self.process.ending(1) or "its agent does not answer any more") + self.last_words()

    def last_words(self) -> str:
        """The end of its log, if it said anything."""
        lines = "".join(f"\n    {line}" for line in list(self.log)[-8:])
        return f"; the last lines of its log:{lines}" if lines else ""

    def ask_to_end(self) -> None:
        """Ask it to end; see `finish`."""
        with contextlib.suppress(OSError, ValueError):
            self._sender.send({"do": "end"})

    def finish(self, seconds: float) -> None:
        """Wait until it has ended; what has not in that time is killed, by the id it gave."""
        if not self._ended.wait(seconds):
            self.process.kill(*self._identity)
        self.process.ending(1)
        self.process.close()
        for reader in self._readers:
            reader.join(2)

    def _read_answers(self) -> None:
        try:
            for message in received(self.process.stdout, self._note):
                self.last_heard = time.monotonic()
                if "pid" in message:
                    self._identity = int(message["pid"]), int(message["started"])
                if "beat" in message:
                    offset = float(message["beat"]) - time.time()
                    self.clock_offset = offset if self.clock_offset is None else max(offset, self.clock_offset)
                answer = self._waiting.get(message.get("answer", -1))
                if answer is not None:
                    answer.set_result(message)
        except (OSError, ValueError) as error:
            self.log.append(f"(its answers end: {error})")
        self._ended.set()
        for answer in list(self._waiting.values()):
            if not answer.done():
                answer.set_exception(OSError("the agent is gone"))

    def _read_log(self) -> None:
        try:
            for line in iter(self.process.stderr.readline, b""):
                self._note(line.decode(errors="replace").rstrip())
        except (OSError, ValueError):
            pass

    def _note(self, text: str) -> None:
        if not _USUAL.match(text):
            self.log.append(text)
        self._logger.info("%s: %s", self.node.address, text)

