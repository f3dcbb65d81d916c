"""Processes in namespaces of their own that end with the process that started them, even if that one is killed.

Each holds its namespaces open: when it ends, the kernel ends whatever else runs in them and removes their interfaces.
The signal that says so comes when the *thread* ends that started them: start them in one that lives on.
"""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from tests.support.waiting import until

BIN = Path(__file__).with_name("bin")
PATH = f"{BIN}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")

BRIDGE = """
set -e
ip link add br0 type bridge
ip link set br0 up
echo ready
exec sleep infinity
"""


class NetworkError(Exception):
    """The test network could not be built, or did not obey."""


def environment(env=None):
    """``env`` (by default this process's) with a PATH on which an administrator's tools are found, and ``bin/ssh``."""
    return dict(os.environ if env is None else env, PATH=PATH)


class Program(subprocess.Popen):
    """A program that ``nsenter`` started and waits for: signals go to the program, and nsenter ends as it did."""

    def send_signal(self, sig):
        until(lambda: self._has_got(sig))

    def _has_got(self, sig):
        """Whether the program has ended, or has got a signal that does not end it."""
        if self.poll() is not None:
            return True
        found = children(self.pid)
        for pid in found:
            # Killed a moment ago, it may be gone by now.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)
            # nsenter stops when its program does, and goes on when told to, be it to see that its program is dead.
            if sig in (signal.SIGCONT, signal.SIGKILL):
                super().send_signal(signal.SIGCONT)
        return bool(found) and sig != signal.SIGKILL


def holder(flags, script, **variables):
    """Run ``unshare flags sh -c script`` and return its Popen when it has said ``ready``."""
    process = subprocess.Popen(
        [*DIES_WITH_PARENT, "unshare", *flags, "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment() | variables,
        # Ctrl-C is for the tests: what they built goes when they have tidied up.
        start_new_session=True,
        text=True,
    )
    with process.stdout, process.stderr:
        if process.stdout.readline() != "ready\n":
            reason = process.stderr.read().strip()
            process.kill()
            process.wait()
            raise NetworkError(f"unshare {' '.join(flags)}: {reason}")
    return process


def children(pid):
    """The processes that ``pid`` started and that have not ended."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def entering(pid, *kinds):
    """The beginning of a command line that runs a command in the namespaces of ``pid``."""
    return ["nsenter", "--target", str(pid), *(f"--{kind}" for kind in kinds), "--"]


def command(*argv, within=(), stdin=""):
    """Run a tool to its end and return what it printed; what it refuses to do is an error with its own words."""
    done = subprocess.run([*within, *argv], input=stdin, capture_output=True, text=True, env=environment(), timeout=30)
    if done.returncode:
        raise NetworkError(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()}\n{stdin}")
    return done.stdout


def ip(*lines, within=()):
    """Run several ``ip`` commands at once."""
    command("ip", "-batch", "-", within=within, stdin="\n".join(lines) + "\n")


def processes(init):
    """The (pid, command line) of each process in the process namespace of ``init``, with pids as seen from outside."""
    found, own = [], os.readlink(f"/proc/{init}/ns/pid")
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(directory / "ns/pid") == own:
                words = (directory / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                # What has ended but was not waited for has no command line, and nsenter is on its way to a program.
                if words[0] not in (b"", b"nsenter"):
                    found.append((int(directory.name), b" ".join(words).decode(errors="replace")))
        except OSError:
            continue
    return sorted(found)


def listening(pid):
    """The TCP ports on which anything listens in the network namespace of ``pid``."""
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return sorted(ports)
