"""A program that trains over hosts, is killed, and goes on with new agents where it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.over_hosts import nothing_left


@pytest.mark.long
def test_a_program_that_is_killed_again_and_again_over_two_hosts(network, tmp_path: Path):
    """By SIGKILL: agents end by themselves, and the next program starts its own."""
    spec = network.spec(hosts=network.hosts[:2])
    command = [sys.executable, "-m", "tests.support.killed", str(tmp_path), "5", "hosts"]
    done = subprocess.run(
        command, input=json.dumps(spec), capture_output=True, text=True, timeout=900,
        env={**os.environ, "HOME": str(network.home)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["later"] >= 2 and found["numbers"] > 10
    assert not found["differ"]
    assert nothing_left(network) == []
