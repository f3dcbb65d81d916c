"""A program that trains over hosts, is killed, and goes on with new agents where it was."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.over_hosts import nothing_left


@pytest.mark.long
def test_a_training_over_two_hosts_that_is_killed_twenty_times(network, tmp_path: Path):
    """By SIGKILL at random moments: the program, its agent here, the agent there. Each start has agents of its own."""
    cluster = network.pair(), network.hosts[1].pid
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.support.killed", str(tmp_path), "20", "hosts"]
    done = subprocess.run(
        command, input=json.dumps(cluster), capture_output=True, text=True, timeout=900,
        env={**os.environ, "HOME": str(network.home)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["killed"] == {"program": 10, "agent here": 5, "agent there": 5}
    assert found["later"] >= 10 and found["numbers"] > 10
    assert not found["differ"]
    assert nothing_left(network) == []
