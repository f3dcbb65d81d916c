"""What ssh's own configuration says is done, and what the ResourceSpec says wins over it."""

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
    # A master of one's own, and what would disturb the agent, are not in force.
    mine = "RemoteCommand id\n  RequestTTY yes\n  LocalForward 22 a:22\n  ControlMaster auto\n  ControlPath ~/none/s\n"
    ssh.configure(f"Host worker\n  HostName {other_port.address}\n  User guest\n  Port 2222\n  {mine}  {key}")
    assert ssh.says("worker", "echo $(hostname) $USER", group=AS_CONFIGURED) == "host1 guest"


def test_what_the_spec_says_wins(network, ssh, other_port):
    ssh.configure("Host *\n  User nobody\n  Port 23\n  IdentityFile ~/none\n  IdentitiesOnly yes\n")
    assert ssh.says(other_port.address, "echo $USER", username="guest", port=2222) == "guest"


def test_a_configuration_that_cannot_be_read(network, ssh):
    for line, cause in ("Port\n", "no argument after keyword"), ("Nonsense yes\n", "Bad configuration option"):
        ssh.configure(line)
        reason = ssh.refusal(network.hosts[1].address)
        assert reason.startswith("ssh's configuration cannot be used: ") and f"line 1: {cause}" in reason


@pytest.mark.oldest
def test_an_ipv6_address(network, ssh):
    host = network.hosts[1]
    assert ssh.says(host.address6, "echo $SSH_CONNECTION").split()[2] == host.address6


@pytest.mark.oldest
def test_a_jump_host(network, ssh, key, monkeypatch):
    """It is not asked with the node's password, even if it wants one."""
    jump, host = network.hosts[1:]
    ssh.configure(f"Host jump\n  HostName {jump.address}\n  User guest\n  {key}\nHost 10.*\n  ProxyJump jump\n")
    # `jump` is an alias, so its address does not match `10.*` and it is reached directly.
    assert ssh.says(host.address, "echo $SSH_CLIENT").split()[0] == jump.address
    assert ssh.says("jump", group=AS_CONFIGURED) == "host1"
    monkeypatch.setenv("AUTODIST_SSH_PASSWORD", network.password)
    assert ssh.says(host.address, "echo $SSH_CLIENT", key_file=None).split()[0] == jump.address
    ssh.configure(f"Host jump\n  HostName {jump.address}\n  User guest\nHost 10.*\n  ProxyJump jump\n")
    reason = ssh.refusal(host.address, key_file=None)
    assert reason.startswith("ssh's way to it (ProxyJump or ProxyCommand) fails. Run this in a terminal: ssh ")
    assert f"guest@{jump.address}: Permission denied (publickey,password)" in reason


def test_a_jump_host_that_fails_says_why(network, ssh, key):
    jump, host = network.hosts[1:]

    def refusal(options, deadline=10):
        ssh.configure(f"Host target\n  HostName {host.address}\n  {options}\nHost *\n  {key}")
        return ssh.refusal("target", deadline=deadline)

    assert "port 99: Connection refused)." in refusal(f"ProxyJump {jump.address}:99")
    closed = refusal(f"Port 99\n  ProxyJump {jump.address}")
    assert "open failed: connect failed: Connection refused; stdio forwarding failed)." in closed
    with host.cut_off():
        assert "was not open within 1 s. Run this in a terminal: ssh " in refusal(f"ProxyJump {jump.address}", 1)
    with jump.listening_otherwise(AllowTcpForwarding="no"):
        assert "open failed: administratively prohibited" in refusal(f"ProxyJump {jump.address}")
    assert refusal("ProxyCommand sh -c 'echo no carrier >&2; exit 7'") == (
        "ssh's way to it (ProxyJump or ProxyCommand) fails. Run this in a terminal: sh -c 'echo no carrier >&2; exit "
        "7' (no carrier)."
    )
