"""`explain` measures where a step's time goes, names what to change first, and leaves the model as it was."""

import html
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import pytest

from autodist_core import ResourceSpec
from autodist_core.kernel import Part
from autodist_core.reports.step_times import (
    COMPUTE,
    HOME,
    INPUT,
    PYTHON,
    STARTING,
    UPDATE,
    WIRE,
    TimeTable,
    WireTime,
    time_of_parts,
)
from autodist_core.reports.time_text import text_of
from autodist_core.reports.timeline import timeline
from autodist_core.runtime.timings import Call, Operation, Run
from autodist_core.strategy import PS
from autodist_keras import DistributedModel
from autodist_keras.callbacks import Throughput, Timeline
from autodist_keras.reports import explain
from tests.support.compare import assert_same, named
from tests.support.made_data import Batches
from tests.support.models import DENSE, dense_data, stacked
from tests.support.training import QUIET, compiled, distributed
from tests.support.waiting import until


def _slow(seconds: float, asked: list[float]) -> Batches:
    """Batches of which each comes late, as from a slow disk, and the times at which they were asked for."""
    def make(index: int):
        asked.append(time.perf_counter())
        time.sleep(seconds)
        return np.ones((8, 5)), np.zeros((8, 1))

    return Batches(make, 1000)


def _model(width: int, layers: int) -> keras.Model:
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(layers)]
    return stacked(keras.Input((5,)), *hidden, keras.layers.Dense(1))


def test_a_slow_input_is_what_to_change_first_and_the_parts_add_up_to_the_time_of_a_step():
    """The data itself measures the step's time: it is asked for the next batch once in a step.

    Other programs may take the processors in the middle of one measurement only. So it is repeated if it differs.
    """
    with DistributedModel(_model(4, 1), ResourceSpec.local(cpus=2)) as front:
        for _ in range(3):
            asked: list[float] = []
            report = front.explain(_slow(0.02, asked), steps=40)
            table = report.table
            # At the end 7 steps were followed, and about 3 batches were ready that no step took.
            period = _middle_mean(np.diff(asked)[-50:-10]) + table.parts[table.busiest][HOME]
            found = [sum(parts.values()) for parts in table.parts.values()]
            if found == pytest.approx([period] * len(found), rel=0.05):
                break
    assert found and found == pytest.approx([period] * len(found), rel=0.05)
    assert all(seconds >= 0 for parts in table.parts.values() for seconds in parts.values())
    assert "change first: the input takes" in report and "raise the PyDataset's workers" in report
    assert "PyDataset's workers" in html.unescape(report._repr_html_())


def test_of_slow_steps_fewer_are_measured_and_the_log_says_how_far_it_is(monkeypatch, caplog):
    for name in ("WARM_UP_ENDS", "MEASURING_ENDS", "FOLLOWING_ENDS"):
        monkeypatch.setattr(explain, name, 0.5)
    with DistributedModel(_model(4, 1), ResourceSpec.local(cpus=2)) as front:
        report = front.explain(_slow(0.6, []), steps=9)
        assert "note: a step takes long, so 2 of 9 steps were measured" in report
        assert "(measured in 2 steps)" in report and "a step takes long" in html.unescape(report._repr_html_())
        assert sum(report.table.parts["localhost"].values()) == pytest.approx(report.table.step)
        said = [line for line in caplog.messages if line.startswith("explain: ")]
        assert said and all(re.fullmatch(r"explain: [1-6] steps? done, \d s so far", line) for line in said)
        assert "a step takes long" not in front.explain(_slow(0.001, []), steps=9)


def _middle_mean(seconds):
    ordered = np.sort(seconds)
    quarter = len(ordered) // 4
    return float(np.mean(ordered[quarter : len(ordered) - quarter]))


def test_arithmetic_is_what_takes_the_time_of_a_large_model():
    x, y = np.ones((512 * 50, 5)), np.zeros((512 * 50, 1))
    model = _model(400, 5)
    before = named(model.weights)
    with DistributedModel(model, ResourceSpec.local(cpus=2)) as front:
        report = front.explain(x, y, batch_size=512, steps=8)
    assert_same(before, named(model.weights), tolerance=0.0)
    assert int(model.optimizer.iterations) == 0
    assert "change first: compute takes" in report
    parts = report.table.parts["localhost"]
    assert parts["compute"] > 0.5 * report.table.step and parts["wire"] < parts["compute"]


PROGRAM = """
import keras
import numpy as np
from autodist_core import ResourceSpec
from autodist_keras import DistributedModel
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=False)
with DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
    print(dm.explain(np.ones((64, 3)), np.zeros((64, 1)), batch_size=4, steps=4))
"""


def test_tensorflow_says_once_that_its_profiler_runs():
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert "change first" in done.stdout
    assert done.stderr.count("Profiler session started") == 1


def test_a_fit_after_explain_is_the_fit_that_would_have_been_without_it():
    def trained(explains: bool):
        keras.utils.set_random_seed(3)
        model, data = compiled(DENSE), dense_data()
        with distributed(model, replicas=2) as front:
            history = front.fit(data.x, data.y, epochs=2, verbose=0)
            before = named(model.variables)
            if explains:
                front.explain()
                assert_same(before, named(model.variables), tolerance=0.0)
                assert model.history is history and model.stop_training is False
            front.fit(data.x, data.y, epochs=2, verbose=0)
        return named(model.variables)

    assert_same(trained(False), trained(True), tolerance=0.0)


def test_what_cannot_be_measured_is_refused_with_what_to_do():
    model, data = compiled(DENSE), dense_data()
    with distributed(model, replicas=2) as front:
        with pytest.raises(ValueError, match=r"there was none: explain\(x, y, batch_size=...\)"):
            front.explain()
        with pytest.raises(ValueError, match=r"explain\(steps=2\): expected a whole number of steps, at least 4"):
            front.explain(data.x, data.y, steps=2)
        front.fit(data.x[:8].copy(), data.y[:8], **QUIET)
        # The thread that drops the iterators may still hold the data.
        until(lambda: all(thread.name != "autodist-drops-data" for thread in threading.enumerate()))
        with pytest.raises(ValueError, match="has let go of the data of that fit"):
            front.explain()
        with pytest.raises(ValueError, match="the data ended after"):
            front.explain(batch for batch in [(data.x[:4], data.y[:4])] * 5)
        front.compile(**DENSE.compile_arguments("sgd"), strategy=PS(staleness=2))
        before = named(model.variables)
        with pytest.raises(ValueError, match="with staleness or sync=False the replicas do not wait"):
            front.explain(data.x, data.y, batch_size=4)
        assert_same(before, named(model.variables), tolerance=0.0)


def test_callbacks_log_the_throughput_and_write_a_timeline(tmp_path):
    model, data, path = compiled(DENSE), dense_data(), tmp_path / "steps.json"
    callbacks = [Throughput(one_replica=1e9), Timeline(path, steps=2, after=3)]
    with distributed(model, replicas=2) as front:
        logs = front.fit(data.x, data.y, batch_size=4, epochs=2, verbose=0, callbacks=callbacks).history
    ratio = [fast / slow for fast, slow in zip(logs["examples_per_second"], logs["steps_per_second"], strict=True)]
    assert min(ratio) >= 2.0 and max(ratio) <= 4.0
    assert logs["scaling_efficiency"] == [each / 2e9 for each in logs["examples_per_second"]]
    events = json.loads(path.read_text())["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert set(processes.values()) == {"program", "localhost CPU:0", "localhost CPU:1"}
    lasting = [event for event in events if event["ph"] == "X"]
    sessions = [(event["ts"], event["ts"] + event["dur"]) for event in lasting if event["name"] == "session"]
    assert len(sessions) == 2
    on_devices = [event for event in lasting if processes[event["pid"]] != "program"]
    assert {event["cat"] for event in on_devices} >= {"compute", "update"}
    assert all(any(begin <= event["ts"] <= end for begin, end in sessions) for event in on_devices)
    assert_rows_are_whole(events)
    with pytest.raises(ValueError, match=r"Timeline works with DistributedModel.fit only"):
        model.fit(data.x, data.y, callbacks=[Timeline(path)], **QUIET)


@pytest.mark.quick("4")
@pytest.mark.parametrize("after", [3, 4, 9])
def test_a_timeline_that_follows_no_step_says_so(after: int, tmp_path, caplog):
    data, path = dense_data(), tmp_path / "steps.json"
    with distributed(compiled(DENSE), replicas=2) as front:
        front.fit(data.x[:16], data.y[:16], batch_size=4, verbose=0, callbacks=[Timeline(path, after=after)])
    assert f"ended after 4 steps. Timeline(after={after}) follows steps from step {after + 2} on" in caplog.text
    assert not path.exists()


def assert_rows_are_whole(events):
    """Each row has a name, no event lasts for less than nothing, and none begins before the one in its row has ended.

    Perfetto drops events of one row that overlap, and puts a row first that has the number of its process.
    """
    ends = {(event["pid"], event["tid"]): 0.0 for event in events if event["name"] == "thread_name"}
    assert not {pid for pid, _ in ends} & {row for _, row in ends}
    assert len({event["pid"] for event in events if event["name"] == "process_name"}) == len({pid for pid, _ in ends})
    for event in sorted((event for event in events if event["ph"] == "X"), key=lambda event: event["ts"]):
        row = event["pid"], event["tid"]
        assert event["ts"] >= ends[row] and event["dur"] >= 0.0
        ends[row] = event["ts"] + event["dur"] - 1e-6  # what the sum of two floats may be off, in microseconds


def test_times_of_a_timeline_do_not_overlap_when_they_are_rounded():
    """TensorFlow's times are not multiples of what the file has, and each operation begins when the last one ends."""
    times = np.sort(np.random.default_rng(0).uniform(2.0, 3.0, size=500))
    operations = tuple(
        Operation("b", "CPU:0", "", "MatMul", Part.COMPUTE, begin, end) for begin, end in itertools.pairwise(times)
    )
    found = timeline([Call(0.0, 5.0, ((0.0, 1.0),), (Run(1.5, 4.0, operations),))], "a")
    assert_rows_are_whole(found["traceEvents"])
    assert len({event["tid"] for event in found["traceEvents"] if event["name"] == "MatMul"}) == 1


def test_a_part_without_time_is_not_negative():
    """These operations fill the run, and their sum is larger than the run by rounding."""
    ends = (0.9, 2.5, 3.8)
    parts = (Part.COMPUTE, Part.UPDATE, Part.EXCHANGE)
    spans = zip(parts, (0.0, *ends), ends, strict=False)
    operations = tuple(Operation("here", "CPU:0", "", "", part, begin, end) for part, begin, end in spans)
    runs = Run(1.0, 4.7), Run(1.0, 4.7, operations)
    calls = [Call(0.0, 9.0, ((0.0, 1.0),), (run,)) for run in runs]
    step, found = time_of_parts(calls, 0.0, 1)
    assert min(found["here"].values()) == 0.0
    assert "-0.0" not in text_of(TimeTable(step, found, 1, 4, 1))


SAVES = "or let fewer bytes travel by a compressor of AllReduce, which is not exact"
WAITS = "The bytes take 0.2 ms, and the rest is waiting for messages"


@pytest.mark.parametrize("seconds, factored, gathered, advice", [
    (0.6, 0, 0, SAVES), (2e-4, 0, 0, WAITS), (2e-4, 3, 0, WAITS), (0.6, 3, 0, "of 3 gradients the factors"),
    (0.6, 3, 0.4, "keep whole weights where memory allows (Sharded()), which saves 200.0 ms"),
], ids=["bytes", "latency", "latency of factors", "bytes of factors", "gathers"])  # fmt: skip
def test_the_advice_on_the_wire_is_about_what_travels(seconds: float, factored: int, gathered: float, advice: str):
    parts = dict.fromkeys((INPUT, PYTHON, COMPUTE, UPDATE, STARTING, HOME), 0.01) | {WIRE: 0.9}
    wire = WireTime("a", seconds * 1.25e8, 1.0, factored=factored, gathered=gathered * 1.25e8)
    text = text_of(TimeTable(1.0, {"a": parts, "b": parts}, 1, 4, 2, wire=wire))
    assert advice in text and "raise batch_size" in text.lower()
    assert ("71.5 MiB (47.7 MiB of gathered weights)" in text) == bool(gathered)
    assert ("not exact" in text) == (advice == SAVES), "what saves little is not advised"
