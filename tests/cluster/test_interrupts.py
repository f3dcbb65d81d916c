"""What is left when the user's program is killed or interrupted in the middle of an epoch over hosts: real signals."""

import contextlib
import json
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.hurting import agents, children
from tests.support.programs import ROOT, printed_by
from tests.support.waiting import HANGS, until

pytestmark = pytest.mark.usefixtures("known_hosts", "nothing_stays")


def line_of(program, seconds):
    """The next line that a program says. Where none comes in time, it writes the stacks of its threads."""
    if not select.select([program.stdout], [], [], seconds)[0]:
        program.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(timeout=5)
        raise TimeoutError(f"the program says nothing for {seconds} s")
    return program.stdout.readline().decode().split()


@pytest.mark.quick("ahead")
@pytest.mark.parametrize("way", ["waiting", "ahead", "apart"])
def test_an_interrupt_ends_the_fit_and_the_next_one_works_and_a_killed_chief_leaves_nothing(network, way):
    command = [sys.executable, "-m", "tests.cluster.chief", way]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as program:
        try:
            program.stdin.write(json.dumps(network.pair()).encode() + b"\n")
            assert line_of(program, 300) == ["training"]
            program.send_signal(signal.SIGINT)
            interrupted, seconds, iterations = line_of(program, 2 * HANGS)
            assert interrupted == "interrupted" and float(seconds) < HANGS and int(iterations) > 0
            assert line_of(program, 2 * HANGS) == ["training"]
            own = children(program.pid)
            # Its agent, and what started ssh.
            assert agents(network.hosts[1]) and len(own) == 2
        finally:
            program.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in own))


@pytest.mark.parametrize("way", ["waiting", "ahead", "apart"])
def test_interrupted_again_and_again(network, way):
    """Replicas that wait for each other take their rows from data pipelines on the machines."""
    printed_by("interrupted", 5, way, "hosts", spec=json.dumps(network.spec()) + "\n")
