"""A host shows the key that is written down, or nothing is sent to it."""

import re
import subprocess

import pytest

from autodist_core.cluster.ssh.known_hosts import HostKey, lookup


def known_hosts(ssh):
    return ssh.home / ".ssh/known_hosts"


@pytest.mark.oldest
def test_an_unknown_key_is_refused_with_its_fingerprint_and_a_command_that_helps(network, ssh):
    host = network.hosts[1]
    known_hosts(ssh).unlink()
    reason = ssh.refusal(host.address)
    prints = subprocess.run(
        ["ssh-keygen", "-lf", host.setup / "host_ed25519.pub"], capture_output=True, text=True, check=True
    ).stdout
    command = f"ssh-keyscan -p 22 {host.address} >> {known_hosts(ssh)}"
    assert reason == (
        f"its host key is not known: ssh-ed25519 {prints.split()[1]}. Compare that with what `ssh-keygen -lf "
        f"/etc/ssh/ssh_host_ed25519_key.pub` prints there, and accept the key with `{command}`."
    )
    subprocess.run(["sh", "-c", command], check=True, stderr=subprocess.DEVNULL)
    assert ssh.says(host.address) == "host1"


@pytest.mark.oldest
def test_a_changed_key_is_refused_loudly_with_both_fingerprints(network, ssh):
    host = network.hosts[1]
    old = {kind: HostKey(*key.split()) for kind, key in zip(("ecdsa", "ed25519"), host.host_keys(), strict=True)}
    host.new_host_key()
    try:
        new = [HostKey(*key.split()) for key in host.host_keys()]
        reason = ssh.refusal(host.address)
        assert reason.startswith("ITS HOST KEY HAS CHANGED. It shows ")
        assert any(f"It shows {key};" in reason for key in new)
        for key in old.values():
            assert f"{key} ({known_hosts(ssh)}:" in reason
        assert f"`ssh-keyscan -p 22 {host.address} >> {known_hosts(ssh)}`" in reason
    finally:
        network.learn()


@pytest.mark.parametrize("kind", ["ecdsa", "ed25519"])
def test_the_server_is_asked_for_the_kind_of_key_that_is_known(network, ssh, kind):
    host = network.hosts[1]
    [line] = [key for key in host.host_keys() if kind in key]
    known_hosts(ssh).write_text(f"{host.address} {line}\n")
    assert ssh.says(host.address) == "host1"


def test_a_revoked_key_is_refused_although_it_is_known(network, ssh):
    host = network.hosts[1]
    lines = "".join(f"@revoked * {key}\n" for key in host.host_keys())
    known_hosts(ssh).write_text(lines + network.known_hosts.read_text())
    assert re.fullmatch(
        r"its host key \S+ SHA256:\S+ is revoked \(\S+/known_hosts:[12]\): do not trust this machine\.",
        ssh.refusal(host.address),
    )


def test_hashed_names_wildcards_ports_and_aliases(network, ssh):
    host = network.hosts[1]
    file = known_hosts(ssh)
    file.write_text("".join(f"{host.address} {key}\n[{host.address}]:2222 {key}\n" for key in host.host_keys()))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    assert host.address not in file.read_text()
    assert ssh.says(host.address) == "host1"
    assert len(lookup([file], f"[{host.address}]:2222")) == 2
    assert not lookup([file], host.address6)

    file.write_text("".join(f"10.77.* {key}\n" for key in host.host_keys()))
    assert ssh.says(host.address) == "host1"
    file.write_text("".join(f"10.77.*,!{host.address} {key}\n" for key in host.host_keys()))
    assert ssh.refusal(host.address).startswith("its host key is not known")
    file.write_text(f"{host.address} ssh-ed25519 no-base64\n{host.address} ssh-ed25519\n|1|x|y ssh-ed25519 AAAA\n\n")
    assert ssh.refusal(host.address).startswith("its host key is not known")

    file.write_text("".join(f"the-worker {key}\n" for key in host.host_keys()))
    ssh.configure("HostKeyAlias The-Worker\n")
    assert ssh.says(host.address) == "host1"
    file.write_text("")
    command = f"ssh -p 22 -l root {host.address} exit"
    assert ssh.refusal(host.address).endswith(f"accept the key with `{command}`.")


def test_other_files_of_known_keys(network, ssh):
    host = network.hosts[1]
    known_hosts(ssh).rename(ssh.home / "elsewhere")
    ssh.configure(f"Host *\n  UserKnownHostsFile ~/nothing {ssh.home}/elsewhere\n")
    assert ssh.says(host.address) == "host1"
    ssh.configure("Host *\n  GlobalKnownHostsFile ~/elsewhere\n  UserKnownHostsFile none\n")
    assert ssh.says(host.address) == "host1"
    ssh.configure("")
    known_hosts(ssh).mkdir()
    assert ssh.refusal(host.address) == (
        f"an operation on this machine failed: [Errno 21] Is a directory: '{known_hosts(ssh)}'."
    )
