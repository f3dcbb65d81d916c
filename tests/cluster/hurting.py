"""What tests do to the agents of a host: kill, stop, cut off, starve."""

import os
import signal
import subprocess
import threading
from pathlib import Path

from tests.support.waiting import until


def agents(host):
    """The agents of a host, by id."""
    return [pid for pid, command in host.processes() if "autodist_core.cluster.on_node.agent" in command]


def kill(host):
    """End the agents of a host, and wait until they have ended: their ids."""
    found = agents(host)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not {pid for pid, _ in host.processes()} & {*found})
    return found


def loss_is_noticed():
    """Whether nothing watches the nodes any more, as after the first that is lost."""
    return all(thread.name != "autodist-watch" for thread in threading.enumerate())


def stop(host):
    for pid in agents(host):
        os.kill(pid, signal.SIGSTOP)


def cut(host):
    host.cut()


def children(pid):
    """The processes that a process has started and that still run."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def starve(host):
    """Let the agent run out of memory: it gets hardly any more than it has."""
    for pid in agents(host):
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        subprocess.run(["prlimit", f"--pid={pid}", f"--as={used + (1 << 20)}"], check=True)
