"""Every kind of key, the agent, the password, both at once; and what is said when none of them is wanted."""

import os
import signal
import subprocess
import threading

import pytest

from autodist_core.cluster.ssh import login
from tests.support.waiting import until

KINDS = {
    "ed25519": ["-t", "ed25519"],
    "ecdsa 256": ["-t", "ecdsa", "-b", "256"],
    "ecdsa 521": ["-t", "ecdsa", "-b", "521"],
    "rsa": ["-t", "rsa", "-b", "2048"],
    "rsa in PEM": ["-t", "rsa", "-b", "2048", "-m", "PEM"],
    "ecdsa in PEM": ["-t", "ecdsa", "-m", "PEM"],
}


@pytest.mark.parametrize("passphrase", ["", "two words"], ids=["plain", "encrypted"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_key(network, ssh, monkeypatch, kind, passphrase):
    # bcrypt's work factor is for real keys.
    rounds = [] if "PEM" in kind else ["-a", "1"]
    key = ssh.keygen(*KINDS[kind], *rounds, passphrase=passphrase)
    monkeypatch.setenv("AUTODIST_SSH_PASSPHRASE", passphrase)
    assert ssh.says(network.hosts[1].address, key_file=str(key)) == "host1"


@pytest.mark.oldest
def test_key_files_that_cannot_be_used(network, ssh, monkeypatch):
    address = network.hosts[1].address
    missing = ssh.home / "missing"
    assert ssh.refusal(address, key_file=str(missing)) == (
        f"key {missing} does not exist: correct the name, or make one with ssh-keygen."
    )
    assert ssh.refusal(address, key_file=str(ssh.home)) == f"key {ssh.home} cannot be read (Is a directory)."
    text = ssh.home / "text"
    text.write_text("no key\n")
    assert ssh.refusal(address, key_file="~/text") == (
        f"key {text} is no private key that can be used: ed25519, ecdsa or rsa, in OpenSSH's format or PEM."
    )
    key = ssh.keygen("-t", "ed25519", "-a", "1", passphrase="right")
    remedy = "set the passphrase there, or give the key to ssh-agent with ssh-add."
    assert ssh.refusal(address, key_file=str(key)) == (
        f"key {key} is encrypted, and AUTODIST_SSH_PASSPHRASE is not set: {remedy}"
    )
    monkeypatch.setenv("AUTODIST_SSH_PASSPHRASE", "wrong")
    assert ssh.refusal(address, key_file=str(key)) == (
        f"key {key} is encrypted, and AUTODIST_SSH_PASSPHRASE does not open it: {remedy}"
    )


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


def test_the_agent_is_asked_where_no_key_is_named(network, ssh, agent):
    key = ssh.keygen("-t", "rsa", "-b", "2048")
    agent(key)
    key.unlink()
    assert ssh.says(network.hosts[1].address, key_file=None) == "host1"


def test_a_key_that_the_agent_holds_needs_no_passphrase(network, ssh, agent):
    key = ssh.keygen("-t", "ed25519", "-a", "1", passphrase="")
    agent(key)
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-a", "1", "-N", "secret", "-f", key], check=True, stdout=subprocess.DEVNULL
    )
    assert ssh.says(network.hosts[1].address, key_file=str(key)) == "host1"


def test_an_agent_that_hangs_is_not_waited_for(network, ssh, agent, monkeypatch):
    agent.process.send_signal(signal.SIGSTOP)
    ssh.configure(f"IdentityFile {network.key_file}\nIdentityFile ~/none\n")
    monkeypatch.setattr(login, "AGENT_SECONDS", 0.5)
    threads = threading.active_count()
    assert ssh.says(network.hosts[1].address, key_file=None) == "host1"
    reason = ssh.refusal(network.hosts[1].address, key_file=None, username="nobody")
    socket = os.environ["SSH_AUTH_SOCK"]
    hangs = f"the ssh agent at {socket} fails (no answer within 0.5 s)"
    assert f"Not usable: {hangs}; key {ssh.home}/none does not exist: " in reason
    ssh.open.pop().close()
    agent.process.send_signal(signal.SIGCONT)
    until(lambda: threading.active_count() <= threads)


def test_the_password_comes_from_the_environment(network, ssh, monkeypatch):
    address = network.hosts[1].address
    monkeypatch.setenv("AUTODIST_SSH_PASSWORD", network.password)
    assert ssh.says(address, "id -un", key_file=None, username="guest") == "guest"
    monkeypatch.setenv("AUTODIST_SSH_PASSWORD", "wrong")
    assert ssh.refusal(address, key_file=None) == (
        "port 22 does not let 'root' in. Tried: the password of AUTODIST_SSH_PASSWORD. It accepts: publickey, "
        "password. Write your public key into ~/.ssh/authorized_keys there, correct 'username' or 'key_file' or set "
        "AUTODIST_SSH_PASSWORD."
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
    assert ssh.refusal(host.address, key_file=str(key), username="nobody") == (
        f"port 22 does not let 'nobody' in. Tried: key {key}. It accepts: publickey, password. Write your public key "
        "into ~/.ssh/authorized_keys there, correct 'username' or 'key_file' or set AUTODIST_SSH_PASSWORD."
    )
    with host.listening_otherwise(PasswordAuthentication="no"):
        assert ssh.refusal(host.address, key_file=None) == (
            "port 22 does not let 'root' in. Tried: nothing. It accepts: publickey. Write your public key into "
            "~/.ssh/authorized_keys there, correct 'username' or 'key_file'."
        )


def test_a_server_that_hangs_up_after_too_many_keys(network, ssh, agent):
    for number in range(8):
        agent(ssh.keygen("-t", "ed25519", name=f"key{number}", accept=False))
    reason = ssh.refusal(network.hosts[1].address, key_file=None)
    assert "It hung up after 6: name the right key in 'key_file', and no other is offered." in reason
    assert reason.count("the agent's ssh-ed25519 SHA256:") == 6
    assert ssh.says(network.hosts[1].address) == "host1"


def test_a_certificate_beside_the_key_is_shown_with_it(network, ssh):
    authority = ssh.keygen("-t", "ed25519", name="authority", accept=False)
    ssh.authorize(f"cert-authority {authority.with_name('authority.pub').read_text()}")
    key = ssh.keygen("-t", "ed25519", accept=False)
    assert "does not let 'root' in" in ssh.refusal(network.hosts[1].address, key_file=str(key))
    sign = ["ssh-keygen", "-q", "-s", authority, "-I", "test", "-n", "root", key.with_name("new_key.pub")]
    subprocess.run(sign, check=True, stdin=subprocess.DEVNULL)
    assert ssh.says(network.hosts[1].address, key_file=str(key)) == "host1"
