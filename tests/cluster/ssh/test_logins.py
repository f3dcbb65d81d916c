"""Keys, the agent, the password, both at once; and what is said when none of them is wanted."""

import signal
import subprocess

import pytest

from tests.support.waiting import until


@pytest.mark.parametrize("passphrase", ["", "two words"], ids=["plain", "encrypted"])
def test_a_key_and_its_passphrase(network, ssh, monkeypatch, passphrase):
    # bcrypt's work factor is for real keys.
    key = ssh.keygen("-t", "ed25519", "-a", "1", passphrase=passphrase, name="a %h key")
    monkeypatch.setenv("AUTODIST_SSH_PASSPHRASE", passphrase)
    assert ssh.says(network.hosts[1].address, key_file=str(key)) == "host1"


@pytest.mark.oldest
def test_key_files_that_cannot_be_used(network, ssh, monkeypatch):
    address = network.hosts[1].address
    missing = ssh.home / "missing"
    assert ssh.refusal(address, key_file=str(missing)) == (
        f"key {missing} cannot be read (No such file or directory): correct 'key_file', or make a key with ssh-keygen."
    )
    text = ssh.home / "text"
    text.write_text("no key\n")
    text.chmod(0o600)
    assert f"Not usable: key {text} (" in ssh.refusal(address, key_file="~/text")
    key = ssh.keygen("-t", "ed25519", "-a", "1", passphrase="right")
    remedy = (
        f"Not usable, although the server accepts it: key {key}, which may be encrypted. Set its passphrase in "
        "AUTODIST_SSH_PASSPHRASE, or give the key to ssh-agent with ssh-add"
    )
    assert remedy in ssh.refusal(address, key_file=str(key))
    monkeypatch.setenv("AUTODIST_SSH_PASSPHRASE", "wrong")
    assert remedy in ssh.refusal(address, key_file=str(key))
    with network.hosts[1].listening_otherwise(PermitRootLogin="no"):
        assert "encrypted" not in ssh.refusal(address)


@pytest.fixture
def agent(ssh, monkeypatch):
    """A running ssh-agent; gives the function that hands it a key."""
    socket = str(ssh.home / "agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    monkeypatch.setenv("SSH_AUTH_SOCK", socket)
    # Its file is there before it listens. Without keys, an agent that answers makes the status 1.
    until(lambda: subprocess.run(["ssh-add", "-l"], capture_output=True, check=False).returncode == 1)

    def add(file):
        subprocess.run(["ssh-add", "-q", file], check=True, stdin=subprocess.DEVNULL)

    add.process = process
    yield add
    process.send_signal(signal.SIGCONT)
    process.terminate()
    process.wait()


def test_the_agent_is_asked_and_one_that_hangs_is_named(network, ssh, agent):
    key = ssh.keygen("-t", "rsa", "-b", "2048")
    agent(key)
    key.unlink()
    assert ssh.says(network.hosts[1].address, key_file=None) == "host1"
    agent.process.send_signal(signal.SIGSTOP)
    assert ssh.refusal(network.hosts[1].address, key_file=None, deadline=1) == (
        "no answer to the login within 1 s: the machine hangs, or the ssh agent of this one does."
    )


def test_the_password_comes_from_the_environment(network, ssh, monkeypatch):
    address = network.hosts[1].address
    ssh.configure("PasswordAuthentication no\n")
    monkeypatch.setenv("AUTODIST_SSH_PASSWORD", network.password)
    assert ssh.says(address, "id -un", key_file=None, username="guest") == "guest"
    monkeypatch.setenv("AUTODIST_SSH_PASSWORD", "wrong")
    assert ssh.refusal(address, key_file=None) == (
        "port 22 does not let 'root' in. Tried: password. It accepts: publickey,password. Write your public key into "
        "~/.ssh/authorized_keys there, correct 'username' or 'key_file' or set AUTODIST_SSH_PASSWORD "
        f"(root@{address}: Permission denied (publickey,password))."
    )


def test_a_server_that_wants_a_key_and_a_password_gets_both(network, ssh, monkeypatch):
    host = network.hosts[2]
    monkeypatch.setenv("AUTODIST_SSH_PASSWORD", network.password)
    with host.listening_otherwise(AuthenticationMethods="publickey,password"):
        assert ssh.says(host.address) == "host2"


@pytest.mark.oldest
def test_a_refused_login_says_what_was_tried_and_what_is_wanted(network, ssh):
    host = network.hosts[2]
    key = ssh.keygen("-t", "ed25519", accept=False)
    assert ssh.refusal(host.address, key_file=str(key), username="nobody").startswith(
        f"port 22 does not let 'nobody' in. Tried: key {key} ED25519 SHA256:"
    )
    with host.listening_otherwise(PasswordAuthentication="no"):
        assert ssh.refusal(host.address, key_file=None) == (
            "port 22 does not let 'root' in. Tried: nothing. It accepts: publickey. Write your public key into "
            "~/.ssh/authorized_keys there, correct 'username' or 'key_file' "
            f"(root@{host.address}: Permission denied (publickey))."
        )


def test_a_server_that_hangs_up_after_too_many_keys(network, ssh, agent):
    for number in range(8):
        agent(ssh.keygen("-t", "ed25519", name=f"key{number}", accept=False))
    reason = ssh.refusal(network.hosts[1].address, key_file=None)
    assert "It hung up after 6: name the right key in 'key_file', and no other is offered." in reason
    assert reason.count("ED25519 SHA256:") == 6
    assert ssh.says(network.hosts[1].address) == "host1"
