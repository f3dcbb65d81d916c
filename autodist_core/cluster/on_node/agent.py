"""An agent: the process on every node, the chief's own included, that holds a TensorFlow server for one run.

It does what its chief asks over its standard input and answers on its standard output. It writes no files, runs no
code of the user's, and ends when its chief ends, closes the connection or is not heard of for the length of a lease.
"""

from __future__ import annotations

import os
import platform
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import IO, Any

from autodist_core.cluster.on_node.light_tensorflow import import_server
from autodist_core.cluster.on_node.machine import own_machine
from autodist_core.cluster.protocol.messages import Message, Sender, received
from autodist_core.cluster.protocol.probes import Listener, measure, reach
from autodist_core.errors import LaunchError

BEAT_SECONDS = 1.0
LEASE_SECONDS = 900.0


class Agent:
    """The state of one agent, and what it can be asked to do: the public methods, by name."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._server: Any = None

    def describe(self) -> Message:
        """What the chief compares with itself, and with what the spec asks of this node."""
        from autodist_core.resource_spec.discovery import local_gpus

        return {
            "python": platform.python_version(), "tensorflow": _version("tensorflow"),
            "autodist-keras": _version("autodist-keras"), "host": platform.node(), "time": time.time(),
            "gpus": list(local_gpus()), **own_machine(),
        }

    def listen(self, secret: str, ports: list[int]) -> Message:
        """Take a port, of a range if one is given, and answer whoever knows the secret there."""
        try:
            self._listener = Listener(secret, ports)
        except OSError as error:
            raise LaunchError("", f"{error}: end what listens there, or let AUTODIST_PORTS name others") from error
        return {"port": self._listener.port}

    def reach(self, secret: str, peers: list[list[Any]], seconds: float) -> Message:
        """Which of the other nodes' listeners answer, each None or what went wrong."""
        return {"problems": reach(secret, [(str(host), int(port)) for host, port in peers], seconds)}

    def measure(self, secret: str, peer: list[Any], seconds: float) -> Message:
        """Latency and bandwidth from here to a peer's listener."""
        return measure(secret, (str(peer[0]), int(peer[1])), seconds)

    def visitors(self) -> Message:
        """The addresses from which those came who knew the secret."""
        return {"addresses": self._listener.visitors if self._listener else []}

    def serve(self, job: str, task: int, tasks: list[str], cpus: int, admitted: list[str]) -> Message:
        """Give the port to a TensorFlow server that admits these addresses only."""
        _import_tensorflow()
        from autodist_core.cluster.on_node.server import start

        if self._listener is not None:
            self._listener.close()
        self._server = start(job, task, tasks, cpus, admitted)
        return {"strangers": self._server.strangers}


ACTIONS = ("describe", "listen", "reach", "measure", "visitors", "serve")


def main() -> None:
    """Answer orders until the chief is done or gone."""
    orders, answers = _claim_streams()
    answers.send({"pid": os.getpid(), "started": _start_of_this_process()})
    waiting: queue.Queue[Message] = queue.Queue()
    threading.Thread(target=_listen_to_chief, args=(orders, waiting), daemon=True).start()
    threading.Thread(target=_beat, args=(answers,), daemon=True).start()
    agent = Agent()
    actions = {name: getattr(agent, name) for name in ACTIONS}
    while True:
        try:
            order = waiting.get(timeout=LEASE_SECONDS)
        except queue.Empty:
            _end(f"nothing was heard of the chief for {LEASE_SECONDS:.0f} s")
        if order.get("do") != "beat":
            answers.send({"answer": order.get("id"), **_answer(actions, order)})


def _answer(actions: Mapping[str, Callable[..., Message]], order: Message) -> Message:
    try:
        return {"result": actions[order["do"]](**order.get("with", {}))}
    except LaunchError as error:
        return {"error": error.reason}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _claim_streams() -> tuple[IO[bytes], Sender]:
    """The pipes to the chief; whatever else this process reads or prints does not get into them."""
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return orders, Sender(answers)


def _listen_to_chief(orders: IO[bytes], waiting: queue.Queue[Message]) -> None:
    try:
        for order in received(orders):
            if order.get("do") == "end":
                os._exit(0)
            waiting.put(order)
    except (OSError, ValueError) as error:
        _end(f"what the chief sends cannot be read: {error}")
    os._exit(0)


def _beat(answers: Sender) -> None:
    while True:
        try:
            answers.send({"beat": time.time()})
        except (OSError, ValueError):
            os._exit(0)
        time.sleep(BEAT_SECONDS)


def _end(why: str) -> None:
    # A TensorFlow server cannot be stopped, and its threads keep a process from ending by itself.
    print(f"autodist agent: {why}; it ends.", file=sys.stderr, flush=True)
    os._exit(1)


def _import_tensorflow() -> None:
    """Not before all nodes have found each other: no other thread runs while a slow disk yields a large library."""
    try:
        import_server()
    except Exception as error:
        raise LaunchError("", f"TensorFlow cannot be imported ({type(error).__name__}: {error})") from error


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _start_of_this_process() -> int:
    """When this process started, in ticks since the machine did: with its id, who it is."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
        return int(stat.read().rpartition(")")[2].split()[19])


if __name__ == "__main__":
    main()
