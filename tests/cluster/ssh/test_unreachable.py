"""Why a machine is not reached: each cause in its own words, and in time."""

import contextlib
import os
import signal
import socket
import threading

import pytest

from autodist_core import LaunchError
from tests.support.waiting import HANGS

pytestmark = pytest.mark.oldest


@contextlib.contextmanager
def listening(network, says=b"", hangs_up=True):
    """A port of this host where something accepts connections, says so much, and hangs up or is silent."""
    accepted = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                accepted.append(server.accept()[0])
                accepted[-1].sendall(says)
                if hangs_up:
                    accepted[-1].shutdown(socket.SHUT_RDWR)

    with socket.create_server((network.hosts[0].address, 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
    for connection in accepted:
        connection.close()


def test_a_closed_port(network, ssh):
    address = network.hosts[1].address
    assert ssh.refusal(address, port=2222) == (
        "port 2222 is closed: the machine answers, and no ssh server listens there. Start it, or correct 'port' "
        f"(ssh: connect to host {address} port 2222: Connection refused)."
    )


def test_a_machine_that_is_cut_off(network, ssh):
    with network.hosts[1].cut_off():
        assert ssh.refusal(network.hosts[1].address, deadline=0.5) == (
            "no answer from port 22 within 0.5 s: the machine is off, cut off, or behind a firewall that drops "
            "connections."
        )


def test_no_route(network, ssh):
    # The first address nobody has in the own network: this host asks for its owner three times, a second apart.
    network.hosts[0].output("ip", "route", "add", "unreachable", "10.78.0.9/32")
    try:
        for address in (f"10.77.{network.number}.99", "10.78.0.9"):
            assert ssh.refusal(address) == (
                "no route to port 22 (No route to host): the machine is off, or this one is not in its network "
                f"(ssh: connect to host {address} port 22: No route to host)."
            )
    finally:
        network.hosts[0].output("ip", "route", "del", "unreachable", "10.78.0.9/32")


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-slow\r\n"], ids=["at all", "after its greeting"])
def test_a_host_that_accepts_and_never_answers(network, ssh, says):
    with listening(network, says, hangs_up=False) as port:
        assert ssh.refusal(network.hosts[0].address, port=port, deadline=1) == (
            f"port {port} accepts connections, and no ssh server answered within 1 s: the machine hangs, or something "
            "else listens there."
        )


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-gone\r\n"])
def test_what_is_no_ssh_server(network, ssh, says):
    with listening(network, says) as port:
        assert ssh.refusal(network.hosts[0].address, port=port).startswith(
            "what listens there does not complete ssh's handshake: it is no ssh server, it refuses this machine, or "
        )


def test_a_name_that_does_not_resolve(network, ssh):
    reason = ssh.refusal("nosuchhost.invalid")
    assert reason.startswith("the name 'nosuchhost.invalid' does not resolve (") or "found no address of it" in reason


def test_a_connection_whose_other_end_is_silent_is_closed(network, ssh):
    host = network.hosts[2]
    connection = ssh.start(host.address, deadline=1.5, keepalive=0.3)
    assert connection.lost is None
    host.power_off()
    try:
        assert connection.stdout.read() == b""
        assert connection.wait(HANGS) == 255
        assert connection.lost == f"Timeout, server {host.address} not responding"
        connection.run("true", seconds=5)
        with pytest.raises(LaunchError, match=f"^{host.address}: its ssh server forwards no ports"):
            connection.lead_here([1])
    finally:
        host.power_on()


def test_a_host_that_hangs_after_the_login(network, ssh):
    """Everything on it is stopped, while its kernel goes on acknowledging: only ssh's own answers are missing."""
    host = network.hosts[1]
    connection = ssh.start(host.address, deadline=2, keepalive=1)
    pids = [pid for pid, words in host.processes() if "sshd" in words]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(LaunchError, match=r"ssh did not forward a port within 0\.5 s\.$"):
            connection.lead_here([1], seconds=0.5)
        connection.wait(HANGS)
        assert connection.lost == f"Timeout, server {host.address} not responding"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
