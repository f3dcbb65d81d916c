"""Datasets with several places that draw seeds run on each machine, in each fit: the machines are told the seeds."""

import re

import keras
import pytest
import tensorflow as tf

from autodist_keras import DistributedModel
from autodist_keras.callbacks import Resume
from tests.cluster.over_hosts import LONG_TRAININGS, alone, losing, part
from tests.support.compare import assert_equally_trained
from tests.support.made_data import learning, made, untuned
from tests.support.training import SEED, seeded, trained

pytestmark = LONG_TRAININGS
EPOCHS = {"epochs": 2, "verbose": 0, "shuffle": False}


def numbers(first, count, seed=None):
    return tf.data.Dataset.range(first, first + count).shuffle(count, seed=seed)


def listed(folder):
    """Files in an order of their own in each pass, and their examples in another."""
    lines = tf.data.Dataset.list_files(str(folder / "*.numbers"), seed=4).interleave(tf.data.TextLineDataset)
    examples = lines.map(lambda line: tf.strings.to_number(line, tf.int64)).shuffle(20, seed=5)
    # Where data end unexpectedly, Keras on one device counts an iteration more.
    return examples.apply(tf.data.experimental.assert_cardinality(75))


KINDS = {
    "files and rows": listed,
    "one after the other": lambda folder: numbers(0, 40, 1).concatenate(numbers(40, 30)),
    "side by side": lambda folder: tf.data.Dataset.zip(numbers(0, 60, 1), numbers(0, 80, 2)).map(
        lambda one, other: 70 * one + other
    ),
    "repeated inside": lambda folder: numbers(0, 30, 1).repeat(2).shuffle(20, seed=2),
    "drawn from several": lambda folder: tf.data.Dataset.sample_from_datasets(
        [numbers(0, 40, 1).repeat(), numbers(40, 40).repeat()], seed=3
    ).take(50),
}  # fmt: skip


@pytest.fixture
def folder(network, tmp_path):
    """Six files with 10 to 15 examples, on both hosts."""
    for place in (tmp_path, network.hosts[1].file(tmp_path)):
        place.mkdir(parents=True, exist_ok=True)
        for name in range(6):
            lines = (str(10 * name + row) for row in range(10 + name))
            (place / f"{name}.numbers").write_text("\n".join(lines))
    return tmp_path


def batches(kind, folder):
    """Batches of 15 examples, in another order in each pass. Some shuffles take TensorFlow's own seed."""
    keras.utils.set_random_seed(SEED)
    return untuned(KINDS[kind](folder).map(made, num_parallel_calls=2).batch(15).prefetch(2))


def plan_says(front, words):
    return re.search("the data of the last fit: (.*)", str(front.plan()))[1].startswith(words)


@pytest.mark.parametrize("kind", KINDS)
def test_each_fit_runs_on_the_machines(network, folder, kind):
    """Three fits on one dataset. The last one has validation data, too."""
    plain, model, spec = seeded(learning), seeded(learning), network.pair(1, 2)
    dataset = batches(kind, folder)
    for _ in range(2):
        plain.fit(dataset, **EPOCHS)
    expected = plain.fit(dataset, validation_data=batches(kind, folder), **EPOCHS).history
    dataset = batches(kind, folder)
    with DistributedModel(model, spec, "PS") as front:
        for _ in range(2):
            front.fit(dataset, **EPOCHS)
            assert plan_says(front, "each machine runs"), str(front.plan())
        history = front.fit(dataset, validation_data=batches(kind, folder), **EPOCHS).history
        assert plan_says(front, "each machine runs"), str(front.plan())
    assert history["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-12)
    assert_equally_trained(trained(plain), trained(model))


def test_a_cache_of_drawn_elements_is_fed_in_a_second_fit(network):
    """The order in the cache of the user's process was drawn in the first fit. Machines fill their caches anew."""
    def cached():
        keras.utils.set_random_seed(SEED)
        return untuned(numbers(0, 60).cache().shuffle(20).map(made).batch(15))

    plain, model, spec = seeded(learning), seeded(learning), network.pair(1, 2)
    dataset = cached()
    for _ in range(2):
        plain.fit(dataset, **EPOCHS)
    dataset = cached()
    with DistributedModel(model, spec, "PS") as front:
        front.fit(dataset, **EPOCHS)
        assert plan_says(front, "each machine runs"), str(front.plan())
        front.fit(dataset, **EPOCHS)
        other = network.hosts[1].address
        assert plan_says(front, f"fed each step: {other} makes another first batch"), str(front.plan())
        assert "or its cache has an order that was drawn before" in str(front.plan())
    assert_equally_trained(trained(plain), trained(model))


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_goes_on_on_the_machines(network, folder, tmp_path_factory, kind):
    """After the end of the program, and after the loss of a machine, both in the middle of an epoch."""
    saved = tmp_path_factory.mktemp("saved")

    def train(front, callbacks):
        front.fit(batches(kind, folder), callbacks=callbacks, **EPOCHS | {"epochs": 3})

    _, plan = part(learning, network.pair(1, 2), saved, train, ends=6)
    found, later = losing(
        network, learning, lambda front, callbacks: train(front, [Resume(saved, every=1), *callbacks]), step=8
    )
    for each in (plan, later):
        assert "the data of the last fit: each machine runs" in each
    assert_equally_trained(alone(learning, train), found)
