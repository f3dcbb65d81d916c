"""What ssh's own configuration says is done, and what the ResourceSpec says wins over it."""

import contextlib
import sys

import pytest

from autodist_core import SSHGroup

AS_CONFIGURED = SSHGroup()


@pytest.fixture
def key(network):
    """The configuration's line for the key that all hosts accept."""
    return f"IdentityFile {network.key_file}\n"


@pytest.fixture
def other_port(network):
    """host1 listens on port 2222 only."""
    host = network.hosts[1]
    with host.listening_otherwise(port=2222):
        yield host


@pytest.mark.oldest
def test_an_alias_with_hostname_user_port_and_key(ssh, key, other_port):
    ssh.configure(f"Host worker\n  HostName {other_port.address}\n  User guest\n  Port 2222\n  {key}")
    assert ssh.says("worker", "echo $(hostname) $USER", group=AS_CONFIGURED) == "host1 guest"


def test_without_a_group_ssh_is_as_configured(network, ssh, key):
    from autodist_core.cluster.ssh import connect

    ssh.configure(f"User guest\n{key}")
    with contextlib.closing(connect(network.hosts[1].address)) as connection:
        assert connection.start("id -un").stdout.read() == b"guest\n"


def test_what_the_spec_says_wins(network, ssh, other_port):
    ssh.configure("Host *\n  User nobody\n  Port 23\n  IdentityFile ~/none\n  IdentitiesOnly yes\n")
    assert ssh.says(other_port.address, "echo $USER", username="guest", port=2222) == "guest"


def test_default_keys_lie_where_ssh_looks_for_them(network, ssh):
    ssh.keygen("-t", "ed25519", name=".ssh/id_ed25519")
    ssh.keygen("-t", "ecdsa", name=".ssh/id_ecdsa", accept=False)
    assert ssh.says(network.hosts[1].address, key_file=None) == "host1"


def test_included_files_and_blocks_after_them(network, ssh, key):
    (ssh.home / ".ssh/more").mkdir()
    (ssh.home / ".ssh/more/one").write_text(f"Host one\n  HostName {network.hosts[1].address}\n")
    (ssh.home / ".ssh/more/two").write_text(f"Host two\n  HostName {network.hosts[2].address6}\n")
    ssh.configure(f"Include more/*\nUser guest\nHost three\n  HostName 10.0.0.1\nHost *\n  {key}")
    assert ssh.says("one", "echo $(hostname) $USER", group=AS_CONFIGURED) == "host1 guest"
    assert ssh.says("two", "echo $(hostname) $USER", group=AS_CONFIGURED) == "host2 guest"


def test_connect_timeout_bounds_the_wait(network, ssh):
    ssh.configure("ConnectTimeout 1\n")
    with network.hosts[1].cut_off():
        assert "no answer from port 22 within 1 s" in ssh.refusal(network.hosts[1].address)


def test_a_configuration_that_cannot_be_read(network, ssh):
    ssh.configure("Port\n")
    assert ssh.refusal(network.hosts[1].address) == (
        "ssh's configuration (~/.ssh/config) cannot be used: Unparsable line Port."
    )
    ssh.configure("Port ssh\n")
    assert ssh.refusal(network.hosts[1].address, port=None).startswith("ssh's configuration (~/.ssh/config) cannot be")


@pytest.mark.oldest
def test_an_ipv6_address(network, ssh):
    host = network.hosts[1]
    assert ssh.says(host.address6, "echo $SSH_CONNECTION").split()[2] == host.address6


@pytest.mark.oldest
def test_a_jump_host(network, ssh, key):
    jump, host = network.hosts[1:]
    ssh.configure(f"Host jump\n  HostName {jump.address}\n  User guest\n  {key}\nHost 10.*\n  ProxyJump jump\n")
    # `jump` is an alias, so its address does not match `10.*` and it is reached directly.
    assert ssh.says(host.address, "echo $SSH_CLIENT").split()[0] == jump.address
    assert ssh.says("jump", group=AS_CONFIGURED) == "host1"


def test_several_jumps_with_users_and_ports(network, ssh, other_port):
    jump, host = network.hosts[1:]
    jumps = f"root@{jump.address}:2222,guest@[{host.address6}],guest@[{jump.address6}]:2222"
    ssh.configure(f"Host last\n  HostName {host.address}\n  ProxyJump {jumps}\n")
    # The spec's key is tried on the way too, where the configuration names none.
    assert ssh.says("last", "echo $(hostname) $SSH_CLIENT").split()[:2] == ["host2", jump.address]


def test_a_jump_host_that_fails_is_named(network, ssh, key):
    jump, host = network.hosts[1:]
    ssh.configure(f"Host target\n  HostName {host.address}\n  ProxyJump nobody@{jump.address}\n")
    assert ssh.refusal("target").startswith(f"jump host {jump.address}: port 22 does not let 'nobody' in. Tried: key ")
    ssh.configure(f"Host target\n  HostName {host.address}\n  ProxyJump {jump.address},{host.address}:99\n{key}")
    assert ssh.refusal("target") == (
        f"jump host {host.address}: jump host {jump.address} does not connect to port 99 (Connect failed)."
    )
    ssh.configure(f"Host target\n  HostName {host.address}\n  Port 99\n  ProxyJump {jump.address}\n{key}")
    assert (
        ssh.refusal("target")
        == f"jump host {jump.address} does not connect to port 99 of {host.address} (Connect failed)."
    )
    with host.cut_off():
        ssh.configure(f"Host target\n  HostName {host.address}\n  ConnectTimeout 1\n  ProxyJump {jump.address}\n{key}")
        assert ssh.refusal("target") == (
            f"jump host {jump.address} does not connect to port 22 of {host.address} (no answer within 1 s)."
        )
    with jump.listening_otherwise(AllowTcpForwarding="no"):
        assert "does not connect to port 22" in ssh.refusal("target")


def test_jumps_in_a_circle(network, ssh):
    one, two = (host.address for host in network.hosts[1:])
    ssh.configure(f"Host {one}\n  ProxyJump {two}\nHost {two}\n  ProxyJump {one}\n")
    assert ssh.refusal(one) == (
        f"jump host {two}: jump host {one}: ssh's configuration (~/.ssh/config) cannot be used: ProxyJump leads in a "
        f"circle ({one} -> {two} -> {one}): give one of them 'ProxyJump none'."
    )


CARRY = """
import socket, sys, threading
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as there:
    def up():
        while data := sys.stdin.buffer.read1(65536):
            there.sendall(data)
        there.shutdown(socket.SHUT_WR)
    threading.Thread(target=up, daemon=True).start()
    while data := there.recv(65536):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
"""


@pytest.mark.oldest
def test_a_proxy_command(network, ssh):
    host = network.hosts[1]
    program = ssh.home / "carry.py"
    program.write_text(CARRY)
    ssh.configure(f"Host worker\n  HostName {host.address}\n  ProxyCommand {sys.executable} {program} %h %p\n")
    assert ssh.says("worker") == "host1"
    ssh.open.pop().close()


def test_a_proxy_command_that_fails(network, ssh):
    ssh.configure("ProxyCommand sh -c 'echo no carrier >&2; exit 7'\n")
    assert ssh.refusal(network.hosts[1].address) == (
        "ProxyCommand 'sh -c 'echo no carrier >&2; exit 7'' does not connect to port 22: it ended with 7: no carrier."
    )
    ssh.configure("ProxyCommand cat >/dev/null\n")
    assert "no ssh server answered within 1 s" in ssh.refusal(network.hosts[1].address, deadline_seconds=1)
    ssh.configure("ProxyCommand none\nProxyJump nowhere\n")
    assert ssh.says(network.hosts[1].address) == "host1"
