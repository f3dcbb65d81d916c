"""Where the time goes over two hosts: a column for each, the wire's bound, and one timeline of both."""

import gzip
import json

import pytest
import tensorflow as tf

from autodist_keras.callbacks import Timeline
from tests.cluster.data.test_data_pipelines import untuned
from tests.cluster.over_hosts import OverHosts
from tests.support.compare import assert_same, named
from tests.support.models import DENSE, dense_data


def test_each_host_has_the_parts_of_a_step_and_one_timeline_has_both(network, tmp_path, known_hosts, nothing_stays):
    spec, data, path = network.pair(1, 2), dense_data(), tmp_path / "steps.json.gz"
    addresses = [node["address"] for node in spec["nodes"]]
    with OverHosts(DENSE, spec) as hosts:
        for builder in ("AllReduce", "PS"):
            hosts.compile("adam", builder)
            hosts.front.fit(data.x, data.y, batch_size=6, epochs=4, verbose=0, callbacks=[Timeline(path, after=3)])
            before = named(hosts.model.variables)
            report = hosts.front.explain()
            assert_same(before, named(hosts.model.variables), tolerance=0.0)
            table = report.table
            assert sorted(table.parts) == sorted(addresses)
            for parts in table.parts.values():
                assert sum(parts.values()) == pytest.approx(table.step)
                assert parts["compute"] > 0 and parts["wire"] > 0
            weights = sum(weight.numpy().nbytes for weight in hosts.model.trainable_weights)
            # Each gradient and each sum or new value crosses once; of the batch, two of three slices.
            of_batch = table.wire.bytes - weights
            assert 0 < of_batch <= 6 * (data.x.itemsize * data.x.shape[1] + data.y.itemsize * data.y[0].size)
            assert f"of wire on {table.wire.node}" in report
            _has_both(json.loads(gzip.decompress(path.read_bytes())), addresses)
        hosts.front.fit(data.x, data.y, batch_size=6, epochs=1, verbose=0)
        fed = "data of the measured steps: fed each step: your program sends the machines their rows of each batch\n"
        assert fed in f"{hosts.front.explain(steps=4)}\n"


def test_waiting_for_the_dataset_of_a_machine_is_input(network, known_hosts, nothing_stays):
    """To make a batch takes each machine much longer than to compute on it."""
    spec = network.pair()

    def slow(number):
        sorted_ = tf.sort(tf.random.stateless_uniform([400_000], tf.stack([number, 7])))
        return tf.reshape(sorted_[:40], (8, 5)), tf.zeros((8, 1))

    batches = untuned(tf.data.Dataset.range(2000).map(slow))
    with OverHosts(DENSE, spec) as hosts:
        hosts.compile("adam", "PS")
        hosts.front.fit(batches, epochs=1, steps_per_epoch=3, verbose=0, shuffle=False)
        assert "each machine runs its tf.data pipeline" in str(hosts.front.plan())
        report = hosts.front.explain(steps=8)
        table = report.table
        for parts in table.parts.values():
            assert sum(parts.values()) == pytest.approx(table.step)
            assert parts["compute"] > 0
            assert parts["input"] > table.step / 4
        assert "change first: the input takes" in report
        assert "note: the data of the measured steps: each machine runs its tf.data pipeline (" in report


def _has_both(found, addresses):
    events = found["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {name.split()[0] for name in names.values()} == {"program", *addresses}
    assert list(found["otherData"]) == [f"clock of {addresses[1]}"]
    lasting = [event for event in events if event["ph"] == "X"]
    sessions = [(event["ts"], event["ts"] + event["dur"]) for event in lasting if event["name"] == "session"]
    wrong = float(found["otherData"][f"clock of {addresses[1]}"].split("at most ")[1].split()[0]) * 1e3
    for event in lasting:
        if names[event["pid"]] != "program":
            assert any(begin - wrong <= event["ts"] <= end + wrong for begin, end in sessions)
