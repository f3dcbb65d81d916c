"""A model with more than 2 GiB in one variable: protobuf's limit, and that of many counts, are in no way."""

import json
from pathlib import Path

from tests.cluster.over_hosts import nothing_left
from tests.support.compare import TOLERANCE
from tests.support.programs import printed_by

PEAK = 13
"""GB. The table takes 2.1 of them in each place where it is."""


def assert_equal(case: str, folder: Path, spec: str = "", **variables: str) -> None:
    """Run a case of `tests.support.large` in a process of its own."""
    # With oneDNN, TensorFlow keeps memory that it has freed: the peak would be its allocator's.
    printed = printed_by("large", case, folder, spec=spec, timeout=600, TF_ENABLE_ONEDNN_OPTS="0", **variables)
    found = json.loads(printed.splitlines()[-1])
    assert found["difference"] < TOLERANCE
    assert found["peak"] < PEAK


def test_it_trains_and_goes_on_and_plain_keras_loads_its_checkpoint(tmp_path: Path):
    for case in ("begin", "resume", "load"):
        assert_equal(case, tmp_path)
    for path in tmp_path.rglob("*.*"):
        path.unlink()


def test_it_trains_over_two_hosts(network, tmp_path: Path):
    spec = json.dumps(network.pair())
    assert_equal("hosts", tmp_path, spec, HOME=str(network.home))
    assert nothing_left(network) == []


def test_a_training_over_two_hosts_that_is_killed_twenty_times(network, tmp_path: Path):
    """By SIGKILL at random moments: the program, its agent here, the agent there. Each start has agents of its own."""
    cluster = json.dumps((network.pair(), network.hosts[1].pid))
    printed = printed_by("killed", tmp_path, 20, "hosts", spec=cluster, timeout=900, HOME=str(network.home))
    found = json.loads(printed.splitlines()[-1])
    assert found["killed"] == {"program": 10, "agent here": 5, "agent there": 5}
    assert found["later"] >= 10 and found["numbers"] > 10
    assert not found["differ"]
    assert nothing_left(network) == []
