"""Who may connect: the socket filter by itself, a running cluster that a stranger looks at, and the control path."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from autodist_core import ResourceSpec
from autodist_core.cluster.chief.cluster import Cluster
from autodist_core.cluster.protocol.probes import Listener, reach
from autodist_core.cluster.protocol.sockets import listening_socket
from tests.cluster.leftovers import assert_nothing_came, own_children, running
from tests.network.lan import HIDDEN, ROOT

IN_VAIN = 1.5
"""Seconds in which somebody whose packets are dropped has asked twice."""


class Program:
    """`listener` on a host: its port, and what it answers to an order."""

    def __init__(self, host):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.cluster.listener"]
        self.process = host.run(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )
        self.port = int(self.answer())

    def answer(self):
        return self.process.stdout.readline().strip()

    def tell(self, *words):
        print(*words, file=self.process.stdin, flush=True)

    def ask(self, *words):
        self.tell(*words)
        return self.answer()


@pytest.fixture
def programs(network):
    """Start a `listener` on a host; all of them end with the test."""
    started = []

    def start(host):
        started.append((host, Program(host)))
        return started[-1][1]

    yield start
    for host, program in started:
        program.process.stdin.close()
        program.process.kill()
        program.process.wait()
        program.process.stdout.close()
        host.started.remove(program.process)


def crowd(count):
    """So many addresses of both families that nobody has."""
    return [f"10.99.0.{number}" if number % 2 else f"fd99::{number:x}" for number in range(1, count + 1)]


def test_the_filter_lets_in_who_is_listed_and_nobody_else(network, programs):
    own, server, stranger = network.hosts
    listener, others = programs(server), programs(stranger)
    listener.tell("accept")
    both = [server.address, listener.port, server.address6, listener.port]
    assert others.ask("ask", IN_VAIN, *both) == "connected connected"
    assert listener.ask("admit", own.address, own.address6, *crowd(58)) == "0"
    # Both of the hosts that ask are there in both families; one is listed.
    assert others.ask("ask", IN_VAIN, *both) == "TimeoutError TimeoutError"
    assert programs(own).ask("ask", IN_VAIN, *both) == "connected connected"
    # A second list takes the place of the first.
    assert listener.ask("admit", stranger.address6) == "0"
    assert others.ask("ask", IN_VAIN, *both) == "TimeoutError connected"


@pytest.mark.parametrize("accepting", ["0", "0.3"], ids=["accepted", "waiting to be accepted"])
@pytest.mark.parametrize("family", ["address", "address6"])
def test_a_stranger_who_came_before_the_filter_is_cut_off(network, programs, family, accepting):
    own, server, stranger = network.hosts
    listener, other = programs(server), programs(stranger)
    guest = programs(own)
    for program in (other, guest):
        assert program.ask("stay", getattr(server, family), listener.port) == "connected"
    listener.tell("accept", accepting)
    assert listener.ask("admit", own.address, own.address6) == "1"
    assert other.answer() == "cut off"
    assert guest.process.poll() is None


def test_a_port_of_somebody_else_cannot_be_filtered(network, programs):
    from autodist_core.cluster.on_node.admission import admit_only

    port = programs(network.hosts[0]).port
    with pytest.raises(OSError, match=f"^this process does not listen on port {port}$"):
        admit_only(port, ["10.0.0.1"])


def ports_of(pid):
    """The TCP ports on which one process listens."""
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        status = os.stat(file)
        if stat.S_ISSOCK(status.st_mode):
            inodes.add(str(status.st_ino))
    tables = "".join(Path(f"/proc/{pid}/net/{table}").read_text() for table in ("tcp", "tcp6"))
    lines = [line.split() for line in tables.splitlines()]
    return {int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A" and line[9] in inodes}


def written(host):
    """Every file that a host has written, with its size and time."""
    places = [*HIDDEN, Path("~root").expanduser()]
    return sorted(host.output("find", *places, "-xdev", "-type", "f", "-printf", "%p %s %T@\\n").splitlines())


@pytest.mark.usefixtures("known_hosts")
def test_from_another_host_nobody_reaches_a_running_cluster_and_it_writes_no_file(network, programs, monkeypatch):
    own, worker, stranger = network.hosts
    other, before, files = programs(stranger), running(network), written(worker)
    children = set(own_children())
    # A proxy is for the world outside, and nobody answers at this one.
    proxy = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    for name, value in {**proxy, "no_grpc_proxy": ""}.items():
        monkeypatch.setenv(name, value)
    spec = network.pair()
    spec["ssh"]["shared_envs"] |= proxy
    cluster = Cluster.start(ResourceSpec(spec))
    try:
        # The agent has a port, and what started ssh has none.
        [port] = {port for child in set(own_children()) - children for port in ports_of(child)}
        [port_there] = set(worker.listening()) - {22}
        where = [own.address, port, own.address6, port, worker.address, port_there, worker.address6, port_there]
        assert other.ask("ask", IN_VAIN, *where) == " ".join(["TimeoutError"] * 4)
        with tf.Graph().as_default(), tf.compat.v1.Session(cluster.target) as session:
            parts = []
            for task in range(2):
                with tf.device(f"/job:{cluster.job}/task:{task}/cpu:0"):
                    parts.append(tf.constant(task + 1.0))
            assert session.run(tf.add_n(parts)) == 3
        assert written(worker) == files
    finally:
        cluster.close()
    assert_nothing_came(before, network)
    assert written(worker) == files


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n", b"[1, 2]\n", b"\xff\xfe\n", b'{"do":'])
def test_an_agent_that_is_sent_garbage_ends_and_says_so(garbage):
    command = [sys.executable, "-m", "autodist_core.cluster.on_node.agent"]
    done = subprocess.run(command, input=garbage, capture_output=True, timeout=20, cwd=ROOT)
    assert done.returncode == 1
    shown = repr(garbage.splitlines(keepends=True)[0])
    assert (
        f"autodist agent: a message of the chief cannot be read: expected a message, received {shown}; the agent ends."
        in done.stderr.decode()
    )


def test_a_listener_of_another_run_refuses(network):
    own = network.hosts[0]
    listener = Listener("of another run")
    try:
        [problem] = reach("of this run", [(own.address, listener.port)], 5)
        assert problem == "the program that answers does not belong to this run" and listener.visitors == []
        assert reach("of another run", [(own.address6, listener.port)], 5) == [None]
        assert listener.visitors == [own.address6]
    finally:
        listener.close()


def test_a_port_is_free_again_as_soon_as_nobody_listens_there():
    """The end that closes a connection first keeps its port for a minute, as the servers of a run that was ended do."""
    with listening_socket([]) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as caller:
            listener.accept()[0].close()
            assert caller.recv(1) == b""
        with pytest.raises(OSError, match=f"^no port is free of {port}$"):
            listening_socket([port])
    listening_socket([port]).close()
