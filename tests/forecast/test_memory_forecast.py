"""The plan's forecast of memory, beside the measured peak of a training in a process of its own."""

import json
import logging
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import keras
import numpy as np
import pytest

from autodist_core import ResourceSpec
from autodist_core.cluster.agents.agent_handle import DESCRIBED
from autodist_core.cluster.on_node.machine import cards, in_groups
from autodist_core.errors import StrategyError
from autodist_core.forecast import needs
from autodist_core.kernel.passes import weights_together
from autodist_core.reports import step_plan
from autodist_core.strategy import Sharded
from autodist_core.strategy.written import written
from autodist_keras import DistributedModel, without_values
from tests.support.machines import machines
from tests.support.models import stacked

MEASURE = Path(__file__).parents[2] / "benchmarks" / "memory.py"
WITHIN = 0.15


def model():
    layers = [keras.layers.Dense(256, activation="relu") for _ in range(3)]
    return stacked(keras.Input((64,)), *layers, keras.layers.Dense(2), optimizer="adam")


def batch(examples):
    return np.ones((examples, 64), "float32"), np.ones((examples, 2), "float32")


@pytest.mark.parametrize("name", ["tables", "cnn"])
def test_the_forecast_is_close_to_the_measured_peak(name):
    # oneDNN's pool would keep what is freed, so that an idle process looked large.
    giving_back = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_ARENA_MAX": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
    command = [sys.executable, str(MEASURE), "--of", name]
    ended = subprocess.run(
        command, env=os.environ | giving_back, stdout=subprocess.PIPE, text=True, timeout=300, check=True
    )
    peak, said = json.loads(ended.stdout.splitlines()[-1])
    assert peak > 200 and abs(said / peak - 1) < WITHIN, (peak, said)


def test_activations_grow_with_the_batch_and_the_state_does_not():
    with DistributedModel(model(), ResourceSpec.local(cpus=2)) as dm:
        small, large = (dm.plan(*batch(examples)).table.memory[0] for examples in (1024, 2048))
    weights = sum(variable.value.numpy().nbytes for variable in dm.model.trainable_variables)
    assert 0 <= small.weights - weights < 100 and 2 * weights <= small.optimizer < 2 * weights + 100
    assert (small.weights, small.optimizer) == (large.weights, large.optimizer)
    # Three hidden layers with 256 numbers of 4 bytes for each example, and what both replicas compute at that moment.
    assert 3 * 1024 <= (large.activations - small.activations) / 1024 <= 9 * 1024


def test_a_step_that_does_not_fit_is_said_with_a_batch_that_would(monkeypatch, caplog):
    monkeypatch.setattr(needs, "available", lambda name, here, held=0: 8 << 20)
    caplog.set_level(logging.WARNING, "autodist")
    with DistributedModel(model(), ResourceSpec.local(cpus=2)) as dm:
        (memory,) = dm.plan(*batch(4096)).table.memory
        assert memory.verdict.startswith("needs ") and "the device has 8.0 MiB: a batch of " in memory.verdict
        fitting = int(memory.verdict.split("a batch of ")[1].split()[0].rstrip(","))
        assert dm.plan(*batch(fitting)).table.memory[0].fits
        assert not dm.plan(*batch(2 * fitting)).table.memory[0].fits
        assert memory.verdict in str(dm.plan(*batch(4096))) and memory.verdict in dm.plan(*batch(4096))._repr_html_()
        for _ in range(2):
            dm.fit(*batch(4096), batch_size=4096, verbose=0)
    said = [each.getMessage() for each in caplog.records if "the device has" in each.getMessage()]
    assert len(said) == 1 and said[0].endswith("plan(x, y) tells what would fit, if anything would.")


@pytest.mark.parametrize("scope", [nullcontext, without_values])
def test_variables_that_do_not_fit_are_refused_before_any_step(scope, monkeypatch):
    """What the model holds in the program already counts as free for it: a model without values holds nothing."""
    with scope():
        layers = keras.Sequential([keras.Input((64,)), keras.layers.Dense(9000), keras.layers.Dense(2)])
    layers.compile("adam", "mse")
    monkeypatch.setattr(needs, "machine_resources", lambda: {"memory_free": 6 * layers.count_params()})
    dm = DistributedModel(layers, ResourceSpec.local(cpus=2), "AllReduce", share_memory=False)
    with dm, pytest.raises(StrategyError, match=r"do not fit, whatever the batch: .* the device has .* MiB"):
        dm.fit(*batch(4), verbose=0)
    assert all(("make_first_value" in vars(each.value)) == (scope is without_values) for each in layers.weights)


@pytest.mark.parametrize(("devices", "second"), [("cpus", "10.0.0.2"), ("gpus", "10.0.0.2:GPU:0")])
def test_over_machines_each_has_what_the_strategy_places_there(devices, second, monkeypatch):
    dm = DistributedModel(model(), machines(1, 1, kind=devices), strategy="PS")

    def planned():
        return {name: each for each in dm.plan(*batch(1024)).table.memory for name in each.devices}

    first, other = planned()["10.0.0.1"], planned()[second]
    assert first.optimizer > 100 * other.optimizer
    assert first.weights > (0.9 if devices == "gpus" else 1.9) * other.weights
    assert first.verdict == "fits" and other.verdict == "it is not known what the device has"
    # An agent describes its machine when it starts.
    monkeypatch.setitem(DESCRIBED, "10.0.0.2", {"memory_free": 3 << 20, "cards": [3 << 20]})
    assert planned()[second].verdict.startswith("needs ")
    assert "the device has 3.0 MiB: a batch of " in planned()[second].verdict


def test_a_strategy_with_less_state_is_named_where_a_step_does_not_fit(monkeypatch):
    def planned(strategy):
        return DistributedModel(model(), machines(1, 1), strategy).plan(*batch(4)).table.memory

    def peak(strategy):
        return max(each.peak for each in planned(strategy))

    kept, gathered = Sharded(whole_bytes=0), Sharded(weights="gathered", whole_bytes=0)
    monkeypatch.setattr(step_plan, "LESS_STATE", (kept, gathered))
    monkeypatch.setattr(weights_together, "TOGETHER_BYTES", 0)  # all weights of this model are smaller
    needed = {written(each): peak(each) for each in (kept, gathered)}
    assert peak("AllReduce") > needed[written(kept)] > needed[written(gathered)]
    for name, size in needed.items():
        monkeypatch.setattr(needs, "available", lambda device, here, held=0, size=size: size)
        assert all(f"{name} would fit" in each.verdict for each in planned("AllReduce"))
    monkeypatch.setattr(needs, "available", lambda name, here, held=0: int(size * (0.9 if name == "10.0.0.1" else 2)))
    assert "shares={'10.0.0.1': 5, '10.0.0.2': 16}) would fit" in planned("AllReduce")[0].verdict


@pytest.mark.parametrize(("visible", "shown"), [(None, [3, 5]), ("1,0", [5, 3]), ("1", [5]), ("-1", []), ("", [])])
def test_the_driver_tells_the_memory_of_visible_cards(visible, shown, monkeypatch, tmp_path):
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\nprintf '3\\n5\\n'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert cards.__wrapped__() == tuple(size << 20 for size in shown)


def test_a_limit_of_a_control_group_counts_also_where_the_process_is_deeper():
    """As in a job of SLURM, whose processes are in groups of its own, and see the groups of the whole machine."""
    group = Path("/sys/fs/cgroup/memory") / f"autodist-{os.getpid()}"
    try:
        (group / "step").mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"no control group of version 1 can be made here: {error}")
    try:
        (group / "memory.limit_in_bytes").write_text(str(1 << 30))
        command = f"echo $$ > {group}/step/cgroup.procs && exec {sys.executable} -c '{_ASKING}'"
        found = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    finally:
        (group / "step").rmdir()
        group.rmdir()
    assert 1 << 29 < int(found) < 1 << 30


@pytest.mark.parametrize("own", [None, b"3:cpu,memory:/\n", b"0::/\xff\n4:memory:/job\n"])
def test_limits_of_control_groups_count_whatever_else_a_kernel_tells(own, tmp_path):
    """A kernel may have no list of groups, no counts of pages, and controllers that share their groups."""
    for name, value in {"limit": 1000, "usage": 400}.items():
        (tmp_path / "memory").mkdir(exist_ok=True)
        (tmp_path / "memory" / f"memory.{name}_in_bytes").write_text(str(value))
    if own is not None:
        (tmp_path / "own").write_bytes(own)
    assert set(in_groups(tmp_path, tmp_path / "own")) == {600}


_ASKING = "from autodist_core.cluster.on_node import machine; print(machine.machine_resources()[\"memory_free\"])"
