"""A host shows the key that is written down, or nothing is sent to it."""

import subprocess

import pytest


def known_hosts(ssh):
    return ssh.home / ".ssh/known_hosts"


@pytest.mark.oldest
def test_an_unknown_key_is_refused_with_its_fingerprint_and_a_command_that_helps(network, ssh):
    host = network.hosts[1]
    known_hosts(ssh).unlink()
    ssh.configure("StrictHostKeyChecking no\n")
    reason = ssh.refusal(host.address, port=22)
    prints = subprocess.run(
        ["ssh-keygen", "-lf", host.setup / "host_ed25519.pub"], capture_output=True, text=True, check=True
    ).stdout
    command = f"ssh -o StrictHostKeyChecking=accept-new -p 22 -l root {host.address} exit"
    assert reason == (
        f"its host key is not known: ssh-ed25519 {prints.split()[1]}. Compare that with what `ssh-keygen -lf "
        f"/etc/ssh/ssh_host_ed25519_key.pub` prints there, and accept the key with `{command}` (Host key verification "
        "failed)."
    )
    # ssh writes the key down before it logs in, which fails here.
    subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert ssh.says(host.address) == "host1"


@pytest.mark.oldest
def test_a_changed_key_is_refused_loudly(network, ssh):
    host = network.hosts[1]
    ssh.configure("StrictHostKeyChecking no\n")
    host.new_host_key()
    try:
        reason = ssh.refusal(host.address)
        prints = subprocess.run(
            ["ssh-keygen", "-lf", host.setup / "host_ed25519.pub"], capture_output=True, text=True, check=True
        ).stdout
        assert reason.startswith(f"ITS HOST KEY HAS CHANGED. It shows ssh-ed25519 {prints.split()[1]}; known is ")
        assert "/.ssh/known_hosts:2. Another machine may answer in its place." in reason
        accept = f"accept the new key with `ssh -o StrictHostKeyChecking=accept-new -l root {host.address} exit`"
        assert f"{accept} (Host key verification failed)." in reason
    finally:
        network.learn()


def test_a_revoked_key_is_refused_although_it_is_known(network, ssh):
    host = network.hosts[1]
    lines = "".join(f"@revoked * {key}\n" for key in host.host_keys())
    known_hosts(ssh).write_text(lines + network.known_hosts.read_text())
    reason = ssh.refusal(host.address)
    assert reason.startswith("its host key ssh-ed25519 SHA256:")
    assert "is revoked in known_hosts: do not trust this machine" in reason
