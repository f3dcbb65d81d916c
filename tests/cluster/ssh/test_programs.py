"""Programs on other machines: their environment, their streams, their end."""

import json
import os
import signal
import sys
import threading
from pathlib import Path

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
    process = ssh.connect(network.hosts[1].address, group=spec.ssh_group(spec.nodes[1])).start(PRINT, {"EMPTY": "full"})
    executable, environment = json.loads(process.stdout.read())
    assert os.path.samefile(executable, sys.executable)
    assert environment.items() >= (odd | {"EMPTY": "full"}).items()


@pytest.mark.parametrize("venv", [None, "export A=1; sleep 1"])
def test_no_command_line_shows_the_values_of_variables(network, ssh, venv):
    """Command lines are for everybody on that machine to read; what else there is of a process, for its user only."""
    host = network.hosts[1]
    connection = ssh.connect(host.address, shared_envs=(("TOKEN", "not-for-all"),), python_venv=venv)
    process = connection.start("cat", {"OTHER": "nor-this"})
    seen = set()
    while "cat" not in seen:
        seen.update(commands(host))
    assert not [words for words in seen if "not-for-all" in words or "nor-this" in words]
    [pid] = [pid for pid, words in host.processes() if words == "cat"]
    assert b"TOKEN=not-for-all\0" in Path(f"/proc/{pid}/environ").read_bytes()
    process.stdin.write(b"its own input\n")
    assert process.stdout.readline() == b"its own input\n"


@pytest.mark.parametrize("name", ["A=B", "A B", "", "1A", "É", "-u"])
def test_variables_that_no_program_could_be_given(network, ssh, name):
    connection = ssh.connect(network.hosts[1].address)
    with pytest.raises(LaunchError, match="cannot be set there: the name of an environment variable has letters"):
        connection.start("true", {name: "value"})


def test_a_virtual_environment_that_is_not_there(network, ssh):
    connection = ssh.connect(network.hosts[1].address, python_venv="source ~/none/bin/activate")
    process = connection.start("python --version")
    assert process.wait(10) != 0
    assert b"none/bin/activate: No such file or directory" in process.stderr.read()
    assert process.stdout.read() == b""


def test_the_program_takes_the_place_of_the_shell(network, ssh):
    """So that its exit status and the signals it gets are its own."""
    connection = ssh.connect(network.hosts[1].address, python_venv="export A=1")
    connection.start("sleep 1000", {"B": "2"})
    assert until(lambda: [words for words in commands(network.hosts[1]) if words == "sleep 1000"]) == ["sleep 1000"]
    assert not [words for words in commands(network.hosts[1]) if "export" in words or "exec" in words]


@pytest.mark.parametrize("status", [0, 3, 255])
def test_the_exit_status(network, ssh, status):
    process = ssh.connect(network.hosts[1].address).start(f"sh -c 'read line; exit {status}'")
    with pytest.raises(TimeoutError, match=r"the program has not ended within 0\.1 s"):
        process.wait(0.1)
    process.stdin.write(b"\n")
    assert process.wait(10) == status


def test_a_program_that_is_killed(network, ssh):
    process = ssh.connect(network.hosts[1].address).start("sleep 1000")
    [pid] = until(lambda: [pid for pid, words in network.hosts[1].processes() if words == "sleep 1000"])
    os.kill(pid, signal.SIGKILL)
    assert process.wait(10) == -1 and process.stdout.read() == b""


@pytest.mark.oldest
def test_streams_carry_bytes_both_ways(network, ssh):
    process = ssh.connect(network.hosts[1].address).start("cat")
    data = os.urandom(20_000_000)

    def write():
        process.stdin.write(data)
        process.stdin.flush()
        process.stdin.close()

    writer = threading.Thread(target=write)
    writer.start()
    parts = [process.stdout.read(size) for size in (0, 1, 70_000, 19_000_000)]
    assert [len(part) for part in parts] == [0, 1, 70_000, 19_000_000]
    assert b"".join(parts) + process.stdout.read() == data
    assert process.stdout.read(5) == b""
    writer.join()
    assert process.wait(10) == 0


def test_lines_and_the_other_output(network, ssh):
    process = ssh.connect(network.hosts[1].address).start("sh -c 'printf \"one\\ntwo\\n\\nrest\"; echo problem >&2'")
    assert [process.stdout.readline() for _ in range(5)] == [b"one\n", b"two\n", b"\n", b"rest", b""]
    assert process.stderr.read() == b"problem\n"


def test_a_write_to_a_program_that_takes_no_more(network, ssh):
    process = ssh.connect(network.hosts[1].address).start("true")
    assert process.wait(10) == 0
    with pytest.raises(OSError):
        process.stdin.write(bytes(50_000_000))


def test_several_programs_at_once_and_closing(network, ssh):
    connection = ssh.connect(network.hosts[1].address)
    processes = [connection.start("cat") for _ in range(5)]
    for number, process in enumerate(processes):
        process.stdin.write(b"%d\n" % number)
    assert [process.stdout.readline() for process in processes] == [b"%d\n" % number for number in range(5)]
    connection.close()
    assert not connection.alive
    assert [process.stdout.read() for process in processes] == [b""] * 5
    until(lambda: not commands(network.hosts[1]))
    connection.close()
    with pytest.raises(LaunchError, match="'true' was not started"):
        connection.start("true")
