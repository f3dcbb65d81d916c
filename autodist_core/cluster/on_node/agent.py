"""The agent: one process on every node, the chief's node included, that holds a TensorFlow server for one run.

In: the chief's orders on standard input. Out: answers and a heartbeat every second on standard output, and a log on
standard error. The agent writes no files and runs no code of the user. It ends when the chief orders it, when the chief
closes the connection, or when no message of the chief has come for the length of a lease.
"""

import contextlib
import os
import platform
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import IO, Any

from autodist_core.cluster.on_node.light_tensorflow import import_tensorflow_server
from autodist_core.cluster.on_node.machine import cards, machine_resources
from autodist_core.cluster.protocol.messages import Message, Sender, receive
from autodist_core.cluster.protocol.probes import Listener, measure, reach
from autodist_core.errors import LaunchError
from autodist_core.give_back import give_back

HEARTBEAT_SECONDS = 1.0
LEASE_SECONDS = 900.0
_AGAIN = "again"
"""The last word of the command of an agent that has started again."""


class Agent:
    """The state of one agent; each public method carries out the order of the same name and returns the answer.

    >>> description = Agent().describe()
    >>> description["python"] == platform.python_version(), description["cpus"] > 0
    (True, True)
    """

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._server: Any = None

    def describe(self) -> Message:
        """Describe this node: the chief compares it with its own node and with the resource spec."""
        from autodist_core.resource_spec.discovery import local_gpus

        gpus = local_gpus()
        return {
            "python": platform.python_version(), "tensorflow": _version("tensorflow"),
            "autodist-keras": _version("autodist-keras"), "host": platform.node(), "time": time.time(),
            "gpus": list(gpus), "cards": list(cards() if gpus else ()), **machine_resources(),
        }

    def listen(self, secret: str, ports: list[int]) -> Message:
        """Listen on a free port, one of `ports` unless that is empty, and answer programs that know the secret."""
        try:
            self._listener = Listener(secret, ports)
        except OSError as error:
            raise LaunchError("", f"{error}: end what listens there, or let AUTODIST_PORTS name others") from error
        return {"port": self._listener.port}

    def reach(self, secret: str, peers: list[list[Any]], seconds: float) -> Message:
        """Try to reach the listener of each peer, a host and a port; the answer has None or a problem for each."""
        return {"problems": reach(secret, [(str(host), int(port)) for host, port in peers], seconds)}

    def measure(self, secret: str, peer: list[Any], seconds: float) -> Message:
        """Measure the latency and the bandwidth of the link from this node to a peer's listener."""
        return measure(secret, (str(peer[0]), int(peer[1])), seconds)

    def visitors(self) -> Message:
        """The addresses of the programs that connected to the listener and knew the secret."""
        return {"addresses": self._listener.visitors if self._listener else []}

    def serve(self, job: str, task: int, tasks: list[str], cpus: int, admitted: list[str], onednn: bool) -> Message:
        """Start a TensorFlow server on the listener's port; only the addresses `admitted` can connect to it.

        With `onednn`, TensorFlow uses oneDNN here too, whatever it would choose for the processors of this node.
        """
        if onednn:
            os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"
        try:
            # Late, because nothing else in this process runs while a large library is loaded.
            import_tensorflow_server()
        except Exception as error:
            raise LaunchError("", f"TensorFlow cannot be imported ({type(error).__name__}: {error})") from error
        from autodist_core.cluster.on_node.server import start_server

        if self._listener is not None:
            self._listener.close()
        self._server = start_server(job, task, tasks, cpus, admitted)
        return {}

    def give_back(self, sizes: list[int]) -> Message:
        """Give back the memory of freed values with these bytes."""
        give_back(sizes)
        return {}


ORDERS = ("describe", "listen", "reach", "measure", "visitors", "serve", "give_back")
"""The orders that an agent carries out; it refuses every other one."""


def main() -> None:
    """Carry out one order after the other until the chief ends this agent or is gone."""
    _use_little_memory()
    orders, answers = _take_standard_streams()
    answers.send({"pid": os.getpid(), "started": _start_of_this_process()})
    waiting: queue.Queue[Message] = queue.Queue()
    threading.Thread(target=_receive_orders, args=(orders, waiting), daemon=True).start()
    threading.Thread(target=_send_heartbeats, args=(answers,), daemon=True).start()
    agent = Agent()
    methods = {name: getattr(agent, name) for name in ORDERS}
    while True:
        try:
            order = waiting.get(timeout=LEASE_SECONDS)
        except queue.Empty:
            _exit_because(f"no message of the chief came within {LEASE_SECONDS:.0f} s")
        if order.get("do") != "beat":
            answers.send({"answer": order.get("id"), **_answer(methods, order)})


def _use_little_memory() -> None:
    """Start this process again with huge pages and few heaps, unless the node has settings of its own.

    Without oneDNN, TensorFlow takes new memory for each large value: with 403 MB of weights, steps took 0.65 s with
    small pages and 0.46 with huge ones. The C library has eight heaps for each processor otherwise, and each keeps what
    messages have left in it: 400 MB on the chief's machine. With one heap for each processor, steps were 6 to 10 %
    slower.
    """
    # The C library reads the variable at the start of a process only. A newer one takes it away from a program with
    # file capabilities, so a process starts again only once.
    if "GLIBC_TUNABLES" not in os.environ and sys.argv[-1] != _AGAIN:
        os.environ["GLIBC_TUNABLES"] = f"glibc.malloc.hugetlb=1:glibc.malloc.arena_max={2 * (os.cpu_count() or 1)}"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], _AGAIN])


def _answer(methods: Mapping[str, Callable[..., Message]], order: Message) -> Message:
    try:
        return {"result": methods[order["do"]](**order.get("with", {}))}
    except LaunchError as error:
        return {"error": error.reason}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _take_standard_streams() -> tuple[IO[bytes], Sender]:
    """Take the pipes to the chief; code that reads standard input or prints later does not disturb the messages."""
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return orders, Sender(answers)


def _receive_orders(orders: IO[bytes], waiting: queue.Queue[Message]) -> None:
    try:
        for order in receive(orders):
            if order.get("do") == "end":
                os._exit(0)
            waiting.put(order)
    except (OSError, ValueError) as error:
        _exit_because(f"a message of the chief cannot be read: {error}")
    os._exit(0)


def _send_heartbeats(answers: Sender) -> None:
    while True:
        try:
            answers.send({"beat": time.time()})
        except (OSError, ValueError):
            os._exit(0)
        time.sleep(HEARTBEAT_SECONDS)


def _exit_because(reason: str) -> None:
    # A TensorFlow server cannot be stopped, and its threads keep the process alive: only `os._exit` ends it.
    print(f"autodist agent: {reason}; the agent ends.", file=sys.stderr, flush=True)
    os._exit(1)


def _version(distribution: str) -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return ""


def _start_of_this_process() -> int:
    """When this process started, in clock ticks since the machine did; together with its id it names the process."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
        return int(stat.read().rpartition(")")[2].split()[19])


if __name__ == "__main__":
    main()
