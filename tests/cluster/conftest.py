"""What the tests of ssh share: a home of their own, and connections that are closed."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from autodist_core import LaunchError, SSHGroup
from autodist_core.cluster.ssh import Connection
from tests.support.waiting import HANGS


@pytest.fixture
def home(network, tmp_path, monkeypatch):
    """A home whose ssh knows the hosts' keys and has neither key nor configuration."""
    (tmp_path / ".ssh").mkdir()
    shutil.copy(network.known_hosts, tmp_path / ".ssh/known_hosts")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("SSH_AUTH_SOCK", "AUTODIST_SSH_PASSWORD", "AUTODIST_SSH_PASSPHRASE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


class Ssh:
    """Connections to hosts of the network, with the network's key unless a test says otherwise."""

    def __init__(self, network, home):
        self.network, self.home, self.open = network, home, []

    def group(self, **settings):
        return SSHGroup(**{"username": "root", "key_file": str(self.network.key_file)} | settings)

    def start(self, address, command="sleep 1000", env=None, deadline=10, keepalive=10, group=None, **settings):
        connection = Connection(address, group or self.group(**settings), command, env, deadline, keepalive)
        self.open.append(connection)
        return connection

    def says(self, address, command="hostname", **settings):
        """What a command prints at ``address``."""
        connection = self.start(address, command, **settings)
        printed = connection.stdout.read().decode()
        assert connection.wait(10) == 0, connection.stderr.read()
        return printed.strip()

    def refusal(self, address, **settings):
        """Why there is no connection to ``address``."""
        start = time.monotonic()
        with pytest.raises(LaunchError) as raised:
            self.start(address, **settings)
        assert time.monotonic() - start < HANGS
        assert raised.value.host == address
        assert str(raised.value) == f"{address}: {raised.value.reason}"
        return raised.value.reason

    def keygen(self, *options, accept=True, passphrase="", name="new_key"):
        """A new key, which all hosts accept if ``accept``."""
        file = self.home / name
        argv = ["ssh-keygen", "-q", *options, "-N", passphrase, "-C", name, "-f", file]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
        if accept:
            self.authorize(Path(f"{file}.pub").read_text())
        return file

    def authorize(self, line):
        for host in self.network.hosts[1:]:
            with host.file("/run/ssh/authorized_keys").open("a") as file:
                file.write(line)

    def configure(self, text):
        (self.home / ".ssh/config").write_text(text)


@pytest.fixture
def ssh(network, home):
    """A helper that connects, asks and is refused; what it opened is closed, and host files are as they were."""
    helper = Ssh(network, home)
    before = {host: host.file("/run/ssh/authorized_keys").read_text() for host in network.hosts[1:]}
    yield helper
    for connection in helper.open:
        connection.close()
    for host, text in before.items():
        for pid, _ in host.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        host.file("/run/ssh/authorized_keys").write_text(text)


@pytest.fixture
def known_hosts(network, monkeypatch):
    """The home of the hosts' network, whose ssh knows their keys."""
    monkeypatch.setenv("HOME", str(network.home))


@pytest.fixture
def nothing_stays(network):
    """Afterwards no process of a test is left on a host."""
    from tests.cluster.over_hosts import nothing_left

    yield
    for host in network.hosts[1:]:
        host.mend()
        for pid, command in host.processes():
            if "autodist_core.cluster.on_node.agent" in command:
                # It may end by itself meanwhile.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
    assert nothing_left(network) == []
