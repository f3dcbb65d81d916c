"""What is left when the user's program is killed or interrupted in the middle of an epoch over hosts: real signals."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.hurting import agents, children
from tests.cluster.over_hosts import nothing_left
from tests.conftest import OF_KERAS
from tests.support.waiting import HANGS, until

pytestmark = [pytest.mark.usefixtures("known_hosts", "nothing_stays"), pytest.mark.filterwarnings(OF_KERAS)]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def chief(network, request):
    """A program of its own that trains for long, and is in the middle of an epoch."""
    command = [sys.executable, "-m", "tests.cluster.chief", getattr(request, "param", "waiting")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as program:
        try:
            program.stdin.write(json.dumps(network.spec(hosts=network.hosts[:2])) + "\n")
            program.stdin.flush()
            assert program.stdout.readline() == "training\n"
            yield program
        finally:
            program.kill()


def test_a_killed_chief_leaves_no_process_on_any_host(network, chief):
    own = children(chief.pid)
    assert agents(network.hosts[1]) and len(own) == 1
    chief.kill()
    assert nothing_left(network) == []
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in own))


@pytest.mark.quick("ahead")
@pytest.mark.parametrize("chief", ["waiting", "ahead", "apart"], indirect=True)
def test_an_interrupt_ends_the_fit_and_the_next_one_works(chief):
    chief.send_signal(signal.SIGINT)
    try:
        output, _ = chief.communicate(timeout=2 * HANGS)
    except subprocess.TimeoutExpired:
        chief.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            chief.wait(timeout=5)  # until the stacks of its threads are written
        raise
    interrupted, seconds, iterations, again = output.split()
    assert (interrupted, again, chief.returncode) == ("interrupted", "again", 0)
    assert float(seconds) < HANGS and int(iterations) > 0


@pytest.mark.long
@pytest.mark.parametrize("way", ["waiting", "ahead", "apart"])
def test_interrupted_again_and_again(network, way):
    """Replicas that wait for each other take their rows from data pipelines on the machines."""
    command = [sys.executable, "-m", "tests.support.interrupted", "5", way, "hosts"]
    spec = json.dumps(network.spec()) + "\n"
    run = subprocess.run(command, cwd=ROOT, input=spec, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
