"""The network itself: hosts on one bridge, in a subnet of their own, with the keys and files that ssh needs."""

import contextlib
import os
import secrets
import shlex
import shutil
import socket
import sys
from pathlib import Path

from tests.network import namespaces
from tests.network.hosts import OWN, Host, Machine
from tests.network.namespaces import PATH, NetworkError, command, entering, ip

ROOT = Path(__file__).parents[2]
TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv", "hostname", "sshd", "ssh", "ssh-keygen", "ssh-agent", "openssl")
HIDDEN = ("/tmp", "/var/tmp", "/dev/shm")

SSHD = """
HostKey /run/ssh/host_ed25519
HostKey /run/ssh/host_ecdsa
AuthorizedKeysFile /run/ssh/authorized_keys
PermitRootLogin yes
PubkeyAuthentication yes
PasswordAuthentication yes
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
UseDNS no
PrintLastLog no
PrintMotd no
PidFile none
MaxStartups 100
LogLevel VERBOSE
"""

ACCOUNTS = """\
root:x:0:0::{home}:/bin/bash
guest:x:2000:2000::/tmp:/bin/sh
sshd:x:102:65534::/run/sshd:/bin/false"""


def missing():
    """Why no network can be built here, or None if one can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a test network needs Linux and root"
    absent = [tool for tool in TOOLS if not shutil.which(tool, path=PATH)]
    if absent:
        packages = "iproute2, openssh-server, openssh-client, openssl"
        return f"a test network needs {', '.join(absent)}, on Debian from the packages {packages}"
    try:
        command("unshare", *(f"--{kind}" for kind in OWN), "--fork", "true")
    except NetworkError as error:
        return f"no namespaces here: {error}"
    return None


class Network:
    """Hosts 0 to ``hosts - 1``; host 0 is this process. ``directory`` takes keys and logs.

    ``disk`` is the size of everything a host can write to (its /tmp, its home, /dev/shm, together); ``shared`` are
    paths of the real system that hosts see although they lie in one of those, as interpreter and checkout always do.
    """

    def __init__(self, hosts, directory, disk="1g", shared=()):
        self.directory = Path(directory)
        self.disk = disk
        self.shared = sorted({str(Path(path)) for path in (sys.prefix, sys.base_prefix, ROOT, *shared)})
        self.sshd = shutil.which("sshd", path=PATH)
        self.user, self.password = "root", secrets.token_urlsafe(12)
        self.home = self.directory / "home"
        """A home for this host's ssh: ``monkeypatch.setenv("HOME", str(network.home))``."""
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        self.known_hosts, self.key_file = self.home / ".ssh/known_hosts", self.directory / "key"
        command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test network", "-f", str(self.key_file))
        self.authorized_keys = [self.key_file.with_suffix(".pub").read_text().strip()]
        self._hash = command("openssl", "passwd", "-6", "-stdin", stdin=self.password).strip()
        self._config = SSHD + self._extra_options()
        with contextlib.ExitStack() as undo:
            self.number, claim = claim_number()
            undo.enter_context(claim)
            self._holder = namespaces.holder(["--net"], namespaces.BRIDGE)
            undo.callback(self._end_bridge)
            undo.callback(os.environ.__setitem__, "PATH", os.environ["PATH"])
            os.environ.update(namespaces.environment())
            self.bridge = entering(self._holder.pid, "net")
            self.hosts = [Host(self, 0), *(Machine(self, index) for index in range(1, hosts))]
            undo.callback(lambda: [host.close() for host in self.hosts])
            self.hosts[0].plug_in()
            for host in self.hosts[1:]:
                host.power_on()
            self.learn()
            self._undo = undo.pop_all()

    def _extra_options(self):
        # Newer servers shut out an address after a few refused logins, which tests ask for.
        try:
            command(self.sshd, "-G", "-f", "/dev/null", "-o", "PerSourcePenalties=no")
        except NetworkError:
            return ""
        return "PerSourcePenalties no\n"

    def _end_bridge(self):
        # The cable of host 0 by name: the kernel removes what is left of a namespace some time later.
        with contextlib.suppress(NetworkError):
            ip(f"link del {self.hosts[0].port}", within=self.bridge)
        self._holder.kill()
        self._holder.wait()

    def close(self):
        """End everything: programs, hosts, the bridge, the interface."""
        self._undo.close()

    def variables(self, host):
        """What ``init.sh`` asks for."""
        home = str(Path("~root").expanduser())
        (host.setup / "config").write_text(self._config)
        (host.setup / "authorized_keys").write_text("\n".join(self.authorized_keys) + "\n")
        names = [f"{other.address} {other.name}\n{other.address6} {other.name}" for other in self.hosts]
        hidden = [*HIDDEN, home]
        return {
            "NAME": host.name,
            "DISK": self.disk,
            "HOME": home,
            "HIDDEN": "\n".join(hidden),
            "SHARED": "\n".join(path for path in self.shared if is_within(path, hidden)),
            "SETUP": str(host.setup),
            "ACCOUNTS": ACCOUNTS.format(home=home),
            "SHADOW": "\n".join(f"{user}:{self._hash}:19000::::::" for user in ("root", "guest")),
            "HOSTS": "\n".join(["127.0.0.1 localhost", "::1 localhost", *names]),
        }

    def learn(self):
        """Write the present keys of all hosts, on any port, into ``known_hosts``."""
        lines = []
        for host in self.hosts[1:]:
            addresses = (host.address, host.address6)
            names = ",".join([*addresses, *(f"[{address}]:*" for address in addresses)])
            lines += [f"{names} {key}" for key in host.host_keys()]
        self.known_hosts.write_text("\n".join(lines) + "\n")

    def spec(self, cpus=1, hosts=None, **group):
        """The content of a ResourceSpec: all hosts (or those given), host 0 the chief, one ssh group for the others.

        ``cpus`` is a number for each host or one for all; ``group`` adds to the ssh group or replaces what it says.
        """
        hosts = self.hosts if hosts is None else hosts
        counts = [cpus] * len(hosts) if isinstance(cpus, int) else cpus
        nodes = [
            {"address": host.address, "cpus": count, "chief": host.index == 0}
            for host, count in zip(hosts, counts, strict=True)
        ]
        ssh = {
            "username": self.user,
            "port": 22,
            "key_file": str(self.key_file),
            "python_venv": f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
            "shared_envs": {"PYTHONPATH": str(ROOT)},
        }
        return {"nodes": nodes, "ssh": ssh | group}

    def pair(self, *cpus):
        """The spec of the first two hosts, of which each has one replica where nothing else is said."""
        return self.spec(list(cpus) or 1, self.hosts[:2])


def is_within(path, directories):
    return any(Path(path).is_relative_to(directory) for directory in directories)


def claim_number():
    """A number that no other process of this machine's network has, and the socket that says so while it is open."""
    taken = command("ip", "-o", "addr")
    for number in range(1, 255):
        if f" 10.77.{number}." in taken or f" adk{number}@" in taken:
            continue
        claim = socket.socket(socket.AF_UNIX)
        try:
            # A name outside the file system: it goes with the process, however that ends.
            claim.bind(f"\0autodist-test-network-{number}")
        except OSError:
            claim.close()
            continue
        return number, claim
    raise NetworkError("Each of the 254 subnets for test networks is taken on this machine.")
