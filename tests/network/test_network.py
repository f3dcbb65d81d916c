"""The test network does what the tests that stand on it take for granted."""

import contextlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.network.fixtures import skip_or_fail
from tests.support.waiting import until

COUNT = """
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as connection:
    start, count = time.perf_counter(), 0
    while data := connection.recv(1 << 20):
        count += len(data)
print(count * 8e-6 / (time.perf_counter() - start))
"""


@contextlib.contextmanager
def listener(address):
    with socket.create_server((address, 0)) as server:
        server.settimeout(10)
        yield server, server.getsockname()[1]


def ssh(network, address, *words):
    options = ("BatchMode=yes", f"UserKnownHostsFile={network.known_hosts}", "ConnectTimeout=5")
    settings = [word for option in options for word in ("-o", option)]
    argv = ["ssh", "-F", "none", "-i", network.key_file, *settings, f"{network.user}@{address}", *words]
    return network.hosts[0].run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def test_each_host_has_a_name_processes_ports_and_files_of_its_own(network):
    one, two = network.hosts[1:]
    assert one.output("hostname") == "host1\n"
    assert one.listening() == [22]
    assert one.processes() == []
    sleeper = one.run(["sleep", "1000"])
    [(pid, words)] = until(one.processes)
    assert words == "sleep 1000" and two.processes() == []
    sleeper.terminate()
    assert sleeper.wait() == -signal.SIGTERM
    assert not Path(f"/proc/{pid}").exists()
    for place in ("/tmp", "/dev/shm", "/run", str(Path("~root").expanduser())):
        one.file(f"{place}/mark").write_text("one")
        assert one.output("cat", f"{place}/mark") == "one"
        assert not two.file(f"{place}/mark").exists() and not Path(f"{place}/mark").exists()
        one.file(f"{place}/mark").unlink()


def megabits(network, host, count):
    """The rate at which ``host`` receives ``count`` bytes from this process."""
    with listener(network.hosts[0].address) as (server, port):
        receiver = host.run([sys.executable, "-c", COUNT, network.hosts[0].address, port], stdout=subprocess.PIPE)
        connection, _ = server.accept()
        with connection:
            connection.sendall(bytes(count))
        return float(receiver.communicate(timeout=30)[0])


def test_a_shaped_cable_carries_its_rate_and_no_more(network):
    chief, host = network.hosts[:2]
    assert megabits(network, host, 50_000_000) > 400
    for shaped in (chief, host):
        shaped.shape("80mbit")
        assert 60 < megabits(network, host, 5_000_000) < 84
        shaped.unshape()
    assert megabits(network, host, 50_000_000) > 400


def test_a_host_without_power_says_no_goodbye_and_comes_back_with_its_keys(network):
    host = network.hosts[2]
    with listener(network.hosts[0].address) as (server, port):
        host.run(["bash", "-c", f"exec 3<>/dev/tcp/{network.hosts[0].address}/{port}; sleep 1000; :"])
        connection, _ = server.accept()
        with connection:
            # The shell is there all the time: a process that becomes another program has no command line meanwhile.
            processes = [pid for pid, _ in host.processes()]
            assert processes
            host.power_off()
            assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.recv(1)
    host.power_on()
    assert ssh(network, host.address, "true").wait(10) == 0


def test_a_required_network_fails_instead_of_being_skipped(monkeypatch):
    monkeypatch.delenv("AUTODIST_REQUIRE_NETWORK", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no root"):
        skip_or_fail("no root")
    monkeypatch.setenv("AUTODIST_REQUIRE_NETWORK", "1")
    with pytest.raises(pytest.fail.Exception, match="no root"):
        skip_or_fail("no root")
    skip_or_fail(None)
