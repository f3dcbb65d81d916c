"""One host of the test network: what a test can do in it and to it."""

import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

from tests.network import namespaces
from tests.network.namespaces import DIES_WITH_PARENT, NetworkError, Program, command, entering, environment, ip
from tests.support.waiting import comes_true

INIT = Path(__file__).with_name("init.sh")
OWN = ("net", "pid", "mount", "uts", "ipc")
"""The namespaces that a host does not share with anybody."""


class Host:
    """What every host has: two addresses, a cable to the bridge, programs. By itself it is host 0, the test's own.

    Programs of host 0 are ordinary children of the test process, killed when the thread ends that started them.
    """

    within = ()
    popen = subprocess.Popen

    def __init__(self, lan, index):
        self.lan, self.index, self.name = lan, index, f"host{index}"
        self.address, self.address6 = f"10.77.{lan.number}.{index + 1}", f"fd77:{lan.number:x}::{index + 1:x}"
        self.interface, self.port = f"adk{lan.number}", f"port{index}"
        # A host that comes back has the network card it had: its neighbours remember the address.
        self.card = f"02:ad:00:00:{lan.number:02x}:{index + 1:02x}"
        self.started = []

    def __repr__(self):
        return f"<{self.name} {self.address} {self.address6}>"

    @property
    def pid(self):
        """A process that lives as long as the host does."""
        return os.getpid()

    def plug_in(self):
        """Lay the cable and give the host its addresses."""
        ip(
            f"link add {self.port} type veth peer name {self.interface} address {self.card} netns {self.pid}",
            f"link set {self.port} master br0 up",
            within=self.lan.bridge,
        )
        ip(
            f"addr add {self.address}/24 dev {self.interface}",
            f"addr add {self.address6}/64 dev {self.interface} nodad",
            f"link set {self.interface} up",
            within=self.within,
        )

    def run(self, argv, **popen):
        """Start a program in this host and return its Popen; killing that kills the program."""
        popen["env"] = environment(popen.get("env"))
        process = self.popen([*(self.within or DIES_WITH_PARENT), *map(str, argv)], **popen)
        self.started.append(process)
        return process

    def output(self, *argv, timeout=30, **popen):
        """Run a program in this host to its end and return what it printed."""
        process = self.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **popen)
        try:
            printed, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        if process.returncode:
            raise NetworkError(f"{self.name}: {argv} ended with {process.returncode}: {printed}")
        return printed

    def listening(self):
        """The TCP ports on which anything listens in this host."""
        return namespaces.listening(self.pid)

    def sent_bytes(self):
        """The bytes that the host has sent to others."""
        return int(self.output("cat", f"/sys/class/net/{self.interface}/statistics/tx_bytes"))

    def cut(self):
        """A partition: nothing passes any more, in neither direction, and nobody is told."""
        ip(f"link set {self.port} nomaster", within=self.lan.bridge)

    def mend(self):
        """End the partition."""
        ip(f"link set {self.port} master br0", within=self.lan.bridge)

    @contextmanager
    def cut_off(self):
        """A partition that lasts as long as the block."""
        self.cut()
        try:
            yield
        finally:
            self.mend()

    def shape(self, rate, latency="100ms"):
        """Make the cable carry no more than ``rate`` ("1gbit", "200mbit") each way; ``latency`` bounds its queue."""
        for within, device in ((self.within, self.interface), (self.lan.bridge, self.port)):
            limit = ("tbf", "rate", rate, "burst", "256kb", "latency", latency)
            command("tc", "qdisc", "replace", "dev", device, "root", *limit, within=within)

    def unshape(self):
        """Let the cable carry what it can."""
        for within, device in ((self.within, self.interface), (self.lan.bridge, self.port)):
            command("tc", "qdisc", "del", "dev", device, "root", within=within)

    def close(self):
        """End what was started here and has not ended."""
        for process in self.started:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()
        self.started.clear()


class Machine(Host):
    """A host of its own: a process tree, a disk, a hostname, an sshd. It can lose its power and get it back."""

    popen = Program

    def __init__(self, lan, index):
        super().__init__(lan, index)
        self.interface = "eth0"
        self.holder = self.listener = None
        self.setup = lan.directory / self.name
        self.setup.mkdir()
        self.sshd_log = self.setup.with_suffix(".log")
        self.new_keys()

    @property
    def pid(self):
        """The host's first process, seen from outside."""
        if self.holder is None or self.holder.poll() is not None:
            raise NetworkError(f"{self.name} is off.")
        return namespaces.children(self.holder.pid)[0]

    def power_on(self):
        """Start the host from an empty disk, with the host keys it had, and its sshd on port 22."""
        flags = [f"--{kind}" for kind in OWN] + ["--fork", "--kill-child", "--mount-proc"]
        self.holder = namespaces.holder(flags, INIT.read_text(), **self.lan.variables(self))
        self.within = entering(self.pid, *OWN)
        self.plug_in()
        self.start_sshd()

    def power_off(self):
        """Everything in the host ends at once and says goodbye to nobody; its files are gone."""
        # The cable first, so that nobody hears a goodbye. Left to itself, it would go some time after the host.
        if self.holder.poll() is None:
            ip(f"link del {self.port}", within=self.lan.bridge)
            os.kill(self.pid, signal.SIGKILL)
        # A host is gone when all that ran there is reaped, also by what brought it there: that may have been stopped.
        super().close()
        self.holder.wait()
        self.holder = self.listener = None

    def close(self):
        if self.holder is not None:
            self.power_off()

    def file(self, path):
        """A file of this host as this process reaches it: ``host.file("/tmp/log").read_text()``."""
        return Path("/proc", str(self.pid), "root", str(path).lstrip("/"))

    def processes(self):
        """The (pid, command line) of all that runs here besides the first process and the listening sshd.

        The pids are those of the real system, for ``os.kill``.
        """
        own = {self.pid, *(namespaces.children(self.listener.pid) if self.listener else ())}
        return [(pid, words) for pid, words in namespaces.processes(self.pid) if pid not in own]

    def new_keys(self):
        for kind in ("ed25519", "ecdsa"):
            file = self.setup / f"host_{kind}"
            file.unlink(missing_ok=True)
            command("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", self.name, "-f", str(file))

    def host_keys(self):
        """The public keys of the host, as ``known_hosts`` writes them."""
        return [" ".join(file.read_text().split()[:2]) for file in sorted(self.setup.glob("host_*.pub"))]

    def new_host_key(self, port=22):
        """What a reinstalled machine does: the same address, other host keys. ``network.learn()`` writes them down."""
        self.stop_sshd()
        self.new_keys()
        for file in self.setup.glob("host_*"):
            inside = self.file(f"/run/ssh/{file.name}")
            inside.write_bytes(file.read_bytes())
        self.start_sshd(port)

    def start_sshd(self, port=22, **options):
        """Listen for ssh on ``port``, with more options of sshd_config, say ``PasswordAuthentication="no"``."""
        settings = [f"-o{key}={value}" for key, value in options.items()]
        with self.sshd_log.open("ab") as log:
            argv = [self.lan.sshd, "-D", "-e", "-f", "/run/ssh/config", "-p", port, *settings]
            self.listener = self.run(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        comes_true(lambda: port in self.listening() or self.listener.poll() is not None, within=30)
        if port not in self.listening():
            raise NetworkError(f"{self.name}: sshd does not listen on {port}:\n{self.sshd_log.read_text()}")

    @contextmanager
    def listening_otherwise(self, port=22, **options):
        """As `start_sshd`, within the block; new connections meet the usual sshd on port 22 again afterwards."""
        self.stop_sshd()
        self.start_sshd(port, **options)
        try:
            yield
        finally:
            self.stop_sshd()
            self.start_sshd()

    def stop_sshd(self):
        """Refuse new connections; those that are open stay open, as with a real sshd."""
        self.listener.kill()
        self.listener.wait()
        self.started.remove(self.listener)
        self.listener = None
