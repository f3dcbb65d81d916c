"""Programs on other machines: their environment, their streams, their end."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from autodist_core import LaunchError, ResourceSpec
from tests.support.waiting import until

PRINT = "python -c 'import json, os, sys; print(json.dumps([sys.executable, dict(os.environ)]))'"
ODD = {
    "EMPTY": "",
    "QUOTES": """it's "two" \\ words""",
    "LINES": "a\nb\t",
    "SHELL_WORDS": "$HOME `id` !! & ; | > *",
    "É": "ü",
}


def commands(host):
    return [words for _, words in host.processes()]


@pytest.mark.oldest
def test_the_virtual_environment_and_the_shared_variables(network, ssh):
    odd = {name: value for name, value in ODD.items() if name.isascii()} | {"UNICODE": "Grüße ☃"}
    spec = ResourceSpec(network.spec(shared_envs=odd))
    process = ssh.start(network.hosts[1].address, PRINT, {"EMPTY": "full"}, group=spec.ssh_group(spec.nodes[1]))
    executable, environment = json.loads(process.stdout.read())
    assert os.path.samefile(executable, sys.executable)
    assert environment.items() >= (odd | {"EMPTY": "full"}).items()


@pytest.mark.parametrize("venv", ["", "export A=1; sleep 1;\n"])
def test_no_command_line_shows_the_values_of_variables(network, ssh, venv):
    """Command lines are for everybody on that machine to read; what else there is of a process, for its user only."""
    host = network.hosts[1]
    shared = (("TOKEN", "not-for-all"),)
    process = ssh.start(host.address, "cat", {"OTHER": "nor-this"}, shared_envs=shared, python_venv=venv)
    seen = set()
    while "cat" not in seen:
        seen.update(commands(host))
    assert not [words for words in seen if "not-for-all" in words or "nor-this" in words]
    [pid] = [pid for pid, words in host.processes() if words == "cat"]
    assert b"TOKEN=not-for-all\0" in Path(f"/proc/{pid}/environ").read_bytes()
    process.stdin.write(b"its own input\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"its own input\n"


@pytest.mark.parametrize("name", ["A=B", "A B", "", "1A", "É", "-u"])
def test_variables_that_no_program_could_be_given(network, ssh, name):
    with pytest.raises(LaunchError, match="cannot be set there: the name of an environment variable has letters"):
        ssh.start(network.hosts[1].address, "true", {name: "value"})


def test_the_program_takes_the_place_of_the_shell(network, ssh):
    """So that its exit status and the signals it gets are its own."""
    ssh.start(network.hosts[1].address, "sleep 1000", {"B": "2"}, python_venv="export A=1")
    assert until(lambda: [words for words in commands(network.hosts[1]) if words == "sleep 1000"]) == ["sleep 1000"]
    assert not [words for words in commands(network.hosts[1]) if "export" in words or "exec" in words]


@pytest.mark.parametrize("status", [0, 3, 255])
def test_the_exit_status(network, ssh, status):
    process = ssh.start(network.hosts[1].address, f"sh -c 'read line; exit {status}'")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.wait(10) == status and process.lost is None
    with pytest.raises(OSError):
        process.stdin.write(bytes(50_000_000))


@pytest.mark.parametrize(("killed", "lost"), [("sleep 1000", None), ("@notty", "its ssh server closed it")])
def test_what_is_killed_there(network, ssh, killed, lost):
    process = ssh.start(network.hosts[1].address)
    for number in until(lambda: [pid for pid, words in network.hosts[1].processes() if killed in words]):
        os.kill(number, signal.SIGKILL)
    assert process.wait(10) == 255 and process.stdout.read() == b"" and process.lost == lost


@pytest.mark.oldest
def test_streams_carry_bytes_both_ways(network, ssh):
    process = ssh.start(network.hosts[1].address, "cat")
    data = os.urandom(20_000_000)
    assert process._ssh.communicate(data) == (data, b"")
    assert process.wait(10) == 0


def test_eight_at_once_another_command_and_the_end(network, ssh):
    """A server of the usual settings refuses logins when more than ten begin at once."""
    host = network.hosts[1]
    with host.listening_otherwise(MaxStartups="10:30:100"), ThreadPoolExecutor() as pool:
        processes = list(pool.map(lambda _: ssh.start(host.address, "cat"), range(8)))
    processes[0].run("touch /tmp/was-here", seconds=10)
    assert host.file("/tmp/was-here").exists()
    until(lambda: commands(host).count("cat") == 8)
    for process in processes:
        process.close()
        process.close()
    assert all(process.stdout.closed for process in processes)
    until(lambda: not commands(host))


LOGS_IN = """
import sys
from autodist_core.cluster.ssh import Connection
from autodist_core.resource_spec import SSHGroup
connection = Connection(sys.argv[1], SSHGroup(username="root", key_file=sys.argv[2]), "cat")
print(connection._directory, connection._ssh.pid, flush=True)
connection.wait()
"""


def test_nothing_stays_after_a_killed_program(network, ssh):
    host = network.hosts[1]
    command = [sys.executable, "-c", LOGS_IN, host.address, network.key_file]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        directory, pid = program.stdout.readline().split()
        assert Path(directory).is_dir() and Path("/proc", pid).is_dir() and commands(host)
        program.kill()
    until(lambda: not commands(host) and not Path(directory).exists() and not Path("/proc", pid).exists())


def test_full_disks(network, ssh, monkeypatch):
    """What ssh says is written to a file, and the program that it asks for a password must run."""
    address, disk = network.hosts[1].address, os.statvfs("/")
    monkeypatch.setenv("AUTODIST_SSH_PASSWORD", network.password)
    monkeypatch.delenv("TMPDIR", raising=False)
    disks = {"/tmp": Mock(f_bavail=0, f_flag=0), "/var/tmp": Mock(f_bavail=1, f_flag=os.ST_NOEXEC)}
    monkeypatch.setattr(os, "statvfs", lambda place: disks.get(place, disk))
    assert ssh.start(address, key_file=None)._directory.parent == ssh.home
    disks[str(ssh.home)] = disks["/tmp"]
    assert ssh.refusal(address) == (
        f"ssh can write and run files in none of /tmp, /var/tmp, {ssh.home}: set TMPDIR to a short path."
    )


def test_a_machine_without_ssh(network, ssh, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert ssh.refusal("10.0.0.2") == "the program 'ssh' is not on this machine: install OpenSSH's client."
