"""Start the agent of one node, and keep the chief's handle on it.

In: a node, and then orders. The handle sends orders, waits for the answers, and keeps the last lines of the agent's
log. An agent is a child on the chief's node, else it is started over ssh or where a scheduler started it. Out: the
answers to orders; the time of the last message, from which the watch over the cluster concludes whether the agent
lives; and the agent's log, through the logger ``autodist.<address>``.
"""

import contextlib
import itertools
import logging
import re
import threading
import time
from collections import deque
from concurrent.futures import CancelledError, Future
from typing import Any

from autodist_core.cluster.agents.agent_over_ssh import AgentOverSSH
from autodist_core.cluster.agents.child_agent import ChildAgent
from autodist_core.cluster.agents.deadlines import Deadlines
from autodist_core.cluster.agents.scheduled_agent import ScheduledAgent
from autodist_core.cluster.protocol.messages import Message, Sender, receive
from autodist_core.errors import LaunchError
from autodist_core.resource_spec import Node, SSHGroup

AgentProcess = ChildAgent | AgentOverSSH | ScheduledAgent
"""The process of one agent, in whatever way it was started, and the pipes to it. Its `connection` is the ssh connection
to its machine, if there is one. It says how the process ended, kills it, and closes the pipes."""


def start_agent(node: Node, group: SSHGroup, deadlines: Deadlines, keepalive: float) -> AgentProcess:
    """Start the agent of a node, or connect to the one that a scheduler started there.

    Over ssh, the connection may be silent for `keepalive` seconds.

    >>> agent = start_agent(Node("localhost", chief=True), SSHGroup(), Deadlines(), keepalive=10)
    >>> agent.connection is None
    True
    >>> agent.close()
    """
    env = {"TF_CPP_MIN_LOG_LEVEL": "1", **dict(group.shared_envs)}
    if not node.gpus:
        env["CUDA_VISIBLE_DEVICES"] = "-1"
    if node.chief:
        return ChildAgent(env)
    if node.agent_port is not None:
        return ScheduledAgent(node.address, node.agent_port, deadlines.scheduled)
    return AgentOverSSH(node, group, env, deadlines.connect, keepalive)


DESCRIBED: dict[str, Message] = {}
"""How the agent of each machine described it, the last time that it was asked in this process."""
LOG_LINES = 20
_SHOWN_LINES = 8
_END_SECONDS = 2.0
_ROUTINE_LINE = re.compile(r"WARNING: All log messages before|[IW]\d{4} \d\d:|E\d{4} \d\d:.*cuda")
"""Lines that TensorFlow logs at every start; they never explain why an agent ended."""


class AgentHandle:
    """The chief's end of one agent; two threads read its answers and its log.

    >>> from autodist_core.cluster.agents.child_agent import ChildAgent
    >>> agent = AgentHandle(Node("localhost", chief=True), ChildAgent({}))
    >>> agent.ask("visitors", 30)
    {'addresses': []}
    >>> agent.tell("end")
    >>> agent.wait_for_end(5)
    >>> agent.ended
    True
    """

    def __init__(self, node: Node, process: AgentProcess) -> None:
        self.node = node
        self.process = process
        self.connection = process.connection
        """The ssh connection to the machine, if there is one."""
        self.last_heard = time.monotonic()
        """When the last message of the agent came."""
        self.description: Message = {}
        """The answer to the order 'describe'; empty before."""
        self.identity = 0, 0
        """The agent's process id and the clock tick at which it started; zeros before it said them."""
        self.clock_offset: float | None = None
        """Seconds by which the node's clock is ahead of this one, less the travel time of its fastest heartbeat."""
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        """The last lines of the agent's log, without routine lines."""
        self._sender = Sender(process.stdin)
        self._numbers = itertools.count()
        self._open_orders: dict[int, Future[Message]] = {}
        self._logger = logging.getLogger(f"autodist.{node.address.replace('.', '_')}")
        self._ended = threading.Event()
        self._readers = [
            threading.Thread(target=target, daemon=True, name=f"autodist-{what}-{node.address}")
            for what, target in (("answers", self._read_answers), ("log", self._read_log))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def ended(self) -> bool:
        """Whether the agent has closed its pipes, by its end or by the loss of the connection."""
        return self._ended.is_set()

    def ask(self, order: str, seconds: float, /, **arguments: Any) -> Message:
        """Send an order and return its result; a LaunchError if the agent fails, ends or does not answer in time."""
        number, answer = next(self._numbers), Future[Message]()
        self._open_orders[number] = answer
        try:
            self._sender.send({"do": order, "id": number, "with": arguments})
            if self.ended:
                answer.cancel()
            found = answer.result(seconds)
        except TimeoutError:
            shell = "" if self.identity[0] else ", or ~/.bashrc there keeps the login shell"
            raise LaunchError(
                self.node.address,
                f"its agent did not answer '{order}' within {seconds:g} s: the machine hangs, or the network is "
                f"down{shell}{self.log_tail()}"
            ) from None
        except (OSError, ValueError, CancelledError):
            self._ended.wait(_END_SECONDS)
            raise LaunchError(self.node.address, self.why_it_ended()) from None
        finally:
            self._open_orders.pop(number, None)
        if "error" in found:
            raise LaunchError(self.node.address, f"its agent could not do '{order}': {found['error']}")
        return dict(found["result"])

    def tell(self, order: str) -> None:
        """Send an order that has no answer: "beat" says that the chief lives, and `wait_for_end` follows "end"."""
        with contextlib.suppress(OSError, ValueError):  # the agent is gone, which the watch notices by `ended`
            self._sender.send({"do": order})

    def why_it_ended(self) -> str:
        """How the agent ended, with the end of its log."""
        # The last lines of the log, which have the reason, may arrive after the end of the answers.
        self._readers[-1].join(1)
        return (self.process.how_it_ended(1) or "its agent does not answer any more") + self.log_tail()

    def log_tail(self) -> str:
        """The end of the agent's log, to be appended to a message; empty if there is no log."""
        lines = "".join(f"\n    {line}" for line in list(self.log)[-_SHOWN_LINES:])
        return f"; the last lines of its log:{lines}" if lines else ""

    def wait_for_end(self, seconds: float) -> None:
        """Wait until the agent has ended, then close its pipes; an agent that runs after `seconds` is killed."""
        if not self._ended.wait(seconds):
            self.process.kill(*self.identity)
        self.process.how_it_ended(1)
        self.process.close()
        for reader in self._readers:
            reader.join(_END_SECONDS)

    def _read_answers(self) -> None:
        try:
            for message in receive(self.process.stdout, self._log_line):
                self.last_heard = time.monotonic()
                if "pid" in message:
                    self.identity = int(message["pid"]), int(message["started"])
                if "beat" in message:
                    offset = float(message["beat"]) - time.time()
                    self.clock_offset = offset if self.clock_offset is None else max(offset, self.clock_offset)
                answer = self._open_orders.get(message.get("answer", -1))
                if answer is not None:
                    answer.set_result(message)
        except (OSError, ValueError) as error:
            self.log.append(f"(the agent's answers end: {error})")
        self._ended.set()
        for answer in list(self._open_orders.values()):
            answer.cancel()

    def _read_log(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in iter(self.process.stderr.readline, b""):
                self._log_line(line.decode(errors="replace").rstrip())

    def _log_line(self, text: str) -> None:
        if not _ROUTINE_LINE.match(text):
            self.log.append(text)
        self._logger.debug("%s: %s", self.node.address, text)
