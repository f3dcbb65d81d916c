"""Datasets that can run anywhere run on each machine, which takes its rows of each batch."""

import threading
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.runtime.data_pipelines import on_machines
from autodist_core.runtime.kept_arrays import KEPT_VARIABLE
from autodist_core.strategy import PS, AllReduce
from autodist_keras import DistributedModel
from tests.cluster.over_hosts import HERE, LONG_TRAININGS, alone, assert_equal_over_a_pair, losing, parts, sent_by
from tests.support.compare import assert_equally_trained
from tests.support.made_data import learning, made, small, untuned
from tests.support.models import DENSE, dense_data
from tests.support.training import SEED, seeded, trained

pytestmark = LONG_TRAININGS
ON_MACHINES = "each machine runs its tf.data pipeline"
FED = "fed each step"


def rows(weights=False):
    data = dense_data()
    return tf.data.Dataset.from_tensor_slices((data.x, data.y, *([np.linspace(0.5, 2.0, 22)] if weights else [])))


def scaled(x, *rest):
    return (x * 1.5 - 0.1, *rest)


def sharded(dataset, policy):
    """The dataset with a policy that does not change which batches there are."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    return dataset.with_options(options)


def classes(x, y):
    return x, tf.abs(tf.sign(y))


def looked_up(x, y):
    """A table that does not change travels with the function."""
    signs, factors = tf.constant([-1, 0, 1], tf.int64), tf.constant([2.0, 1.0, 0.5], y.dtype)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(signs, factors), 0.0)
    return x, tf.debugging.check_numerics(y * table.lookup(tf.cast(tf.sign(y), tf.int64)), "the labels")


def datasets():
    """Datasets of 22 examples, and the options of their `fit`. Batches are uneven, and the last one is smaller."""
    auto = tf.data.AUTOTUNE
    batches = rows().shuffle(10, seed=3).map(scaled, num_parallel_calls=auto).batch(7)
    return {
        "shuffled": (sharded(batches.prefetch(auto), "DATA"), {"epochs": 2}),
        "cached": (
            sharded(rows(), "OFF").cache().shuffle(22).map(scaled).batch(5, num_parallel_calls=2), {"epochs": 3}
        ),
        "looked up": (rows().shuffle(22).map(looked_up).batch(6), {"epochs": 2}),
        "repeated": (rows().shuffle(9).repeat().batch(5).rebatch(7), {"epochs": 3, "steps_per_epoch": 4}),
        "validated": (
            batches, {"epochs": 3, "validation_freq": 2,
             "validation_data": untuned(rows().shuffle(22).batch(8).prefetch(1))}
        ),
        "foreseen": (
            rows().shuffle(10, seed=3).map(scaled).batch(5, drop_remainder=True).prefetch(2),
            {"epochs": 3, "validation_data": untuned(rows().batch(11, drop_remainder=True))},
        ),
        "foreseen, kept in memory": (rows().map(scaled).batch(7, drop_remainder=True).cache(), {"epochs": 3}),
        "foreseen, without end": (
            rows().repeat().map(scaled).batch(7, drop_remainder=True), {"epochs": 3, "steps_per_epoch": 4}
        ),
        "unknown": (rows(True).filter(lambda x, y, w: w > 0.7).batch(4), {"epochs": 2}),
        "classes": (batches.map(classes).take(2), {"epochs": 2, "class_weight": {0: 1.0, 1: 2.0}}),
        "idle": (rows().batch(3).map(lambda x, y: (x[:1], y[:1])).concatenate(batches), {"epochs": 2}),
    }


def everything(front, model):
    results = {}
    for name in datasets():
        keras.utils.set_random_seed(SEED)
        dataset, options = datasets()[name]
        if front is model and name == "unknown":
            # Keras on one device counts an iteration more where data end unexpectedly.
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(5))
        results[name] = front.fit(untuned(dataset), verbose=0, shuffle=False, **options).history
        if front is not model:
            assert ON_MACHINES in str(front.plan()), name
            assert ("this program runs it too" in str(front.plan())) == ("foreseen" not in name), name
    return results


def test_datasets_train_as_on_one_device(network):
    assert_equal_over_a_pair(network, DENSE, everything)


def test_the_chief_sends_little(network, monkeypatch):
    """Shuffles without a seed are alike everywhere: without learning, each epoch has the loss of all examples."""
    whole = tf.data.Dataset.range(600).map(made)
    with DistributedModel(seeded(small), network.pair(), AllReduce()) as front:
        loss = front.model.evaluate(whole.batch(60), verbose=0)
        for dataset in (
            tf.data.Dataset.range(600).shuffle(600).map(made, num_parallel_calls=2).batch(60).prefetch(2),
            tf.data.Dataset.range(600).shuffle(600).map(made).repeat(2).batch(60),
        ):
            fit = partial(front.fit, untuned(dataset), epochs=4, verbose=0, shuffle=False)
            monkeypatch.setenv(KEPT_VARIABLE, "0")
            fed, _ = sent_by(network, fit)
            assert f"{FED}: it has" in str(front.plan())
            monkeypatch.delenv(KEPT_VARIABLE)
            sent, history = sent_by(network, fit)
            assert ON_MACHINES in str(front.plan())
            # The first batch is fed, and compared with what the machine makes.
            assert sent < 0.3 * fed
            np.testing.assert_allclose(history.history["loss"], loss, rtol=1e-12)


def endless():
    return untuned(tf.data.Dataset.range(120).shuffle(50, seed=5).map(made).repeat().batch(50).prefetch(2))


def foreseen():
    batches = tf.data.Dataset.range(220).shuffle(50, seed=5).map(made).batch(50, drop_remainder=True)
    return untuned(batches.prefetch(2))


KINDS = {
    "followed": (endless, {"epochs": 3, "steps_per_epoch": 4, "verbose": 0, "shuffle": False}),
    "foreseen": (foreseen, {"epochs": 3, "verbose": 0, "shuffle": False}),
}
"""Datasets of three epochs of four batches. The program of the user follows the first one."""


def trained_on(kind):
    return lambda front, callbacks: front.fit(KINDS[kind][0](), callbacks=callbacks, **KINDS[kind][1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_machine_that_was_lost_goes_on_at_the_right_batch(network, kind):
    """The steps that are repeated are fed. After these, the machines make the batches again."""
    sent, train = [], trained_on(kind)
    measure = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: sent.append(network.hosts[0].sent_bytes())
    )
    found, plan = losing(network, learning, lambda front, callbacks: train(front, [measure, *callbacks]), step=5)
    assert ON_MACHINES in plan
    # The last steps send much less than two thirds of a batch, which are 133 kB.
    assert max(np.diff(sent[-4:])) < 60_000
    assert_equally_trained(alone(learning, train), found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("here_first", [False, True], ids=["from machines to one", "from one machine to several"])
def test_a_training_goes_on_on_other_machines(network, tmp_path, here_first, kind):
    """A saved position is one of the dataset's iterator, wherever the batches are made."""
    specs = [network.pair(1, 2), HERE]
    model, *plans = parts(learning, specs[::-1] if here_first else specs, tmp_path, trained_on(kind), ends=6)
    assert [ON_MACHINES in plan for plan in plans] == [not here_first, here_first]
    assert_equally_trained(alone(learning, trained_on(kind)), trained(model))


def generated():
    for number in range(6):
        yield np.full(500, float(number)), [1.0]


def in_python(x):
    return x + 1.0


def fed_datasets(folder):
    """Datasets that are fed, by the words in which the plan says why."""
    pairs, shuffled = tf.data.Dataset.range(6).map(made), tf.data.Dataset.range(6).shuffle(6, seed=1).map(made)
    spec = tf.TensorSpec((500,), tf.float64), tf.TensorSpec((1,), tf.float64)
    scale = tf.Variable(2.0, dtype=tf.float64)
    by_file, unordered = tf.data.Options(), tf.data.Options()
    by_file.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    unordered.deterministic = False

    def shaped(x, y, function):
        return tf.ensure_shape(tf.numpy_function(function, [x], tf.float64), (500,)), y

    def inner(number):
        # Without TensorFlow's own seed, which the tests set, each shuffle draws another.
        tf.random.set_seed(None)
        return tf.data.Dataset.range(3).shuffle(3).map(made)

    return {
        "it runs Python functions (from_generator)": tf.data.Dataset.from_generator(generated, output_signature=spec),
        "it runs Python functions (py_function or numpy_function)": pairs.map(
            lambda x, y: shaped(x, y, in_python)
        ),
        "it reads variables, as a preprocessing layer with state does": pairs.map(lambda x, y: (x * scale, y)),
        "its function has state of its own, such as random numbers (RandomUniform)": pairs.map(
            lambda x, y: (x + tf.random.uniform((), dtype=tf.float64), y)
        ),
        "its order is not fixed (deterministic=False)": pairs.map(
            lambda x, y: (x, 2.0 * y), num_parallel_calls=2, deterministic=False
        ),
        "its order is not fixed (deterministic=False) ": pairs.with_options(unordered),
        "TensorFlow finds no files in it that machines could share out": pairs.with_options(by_file),
        "it keeps a cache in a file": pairs.cache(str(folder / "cache")),
        "two of its parts share the seeds of one shuffle": shuffled.concatenate(shuffled),
        "its function shuffles or draws without a seed": tf.data.Dataset.range(2).flat_map(inner),
    }


def test_what_cannot_run_elsewhere_is_fed(network, tmp_path):
    """A file that only the chief has, a file that has other content elsewhere, and what the dataset's graph says."""
    with DistributedModel(seeded(learning), network.pair(), AllReduce()) as front:
        for reason, dataset in fed_datasets(tmp_path).items():
            history = front.fit(untuned(dataset.batch(3)), epochs=2, verbose=0, shuffle=False).history
            assert np.isfinite(history["loss"]).all()
            assert f"{FED}: {reason.strip()}" in str(front.plan()), reason
        # Replicas that do not wait for each other are fed the batches that the program makes after all.
        front.compile(keras.optimizers.SGD(0.0), "mse", strategy=PS(staleness=2))
        plain = small()
        plain.set_weights(front.model.get_weights())
        losses = [each.fit(foreseen(), epochs=2, verbose=0, shuffle=False).history["loss"] for each in (plain, front)]
        assert f"{FED}: the replicas of this strategy do not wait for each other" in str(front.plan())
        np.testing.assert_allclose(*losses, rtol=1e-12)


def records(path):
    """12 examples from a file."""
    def parsed(record):
        x = tf.ensure_shape(tf.io.decode_raw(record, tf.float64), (500,))
        return x, tf.reduce_sum(x, keepdims=True)

    batches = tf.data.FixedLengthRecordDataset(str(path), 4000).map(parsed).batch(3)
    return untuned(batches.apply(tf.data.experimental.assert_cardinality(4)))


def test_files_are_compared_with_the_first_batch(network, tmp_path):
    """A file may be missing elsewhere, or have other content. Then batches are fed, and the plan says why."""
    numbers = np.random.default_rng(2).normal(size=(12, 500))
    path, worker = tmp_path / "numbers", network.hosts[1]
    path.write_bytes(numbers.tobytes())
    there = worker.file(path)
    there.parent.mkdir(parents=True)
    model = seeded(learning)
    model.fit(records(path), epochs=2, verbose=0, shuffle=False)
    expected = trained(model)
    cases = {
        f"{FED}: a machine cannot make its first batch ({path}; No such file or directory": None,
        f"{FED}: {worker.address} makes another first batch than the chief: its files may be others": numbers + 1.0,
        ON_MACHINES: numbers,
    }
    for words, content in cases.items():
        if content is not None:
            there.write_bytes(content.tobytes())
        model = seeded(learning)
        with DistributedModel(model, network.pair(), PS()) as front:
            front.fit(records(path), epochs=2, verbose=0, shuffle=False)
            assert words in str(front.plan())
        assert_equally_trained(expected, trained(model))


def test_a_training_ends_while_its_dataset_still_computes(network, monkeypatch):
    """The machines prefetch an example that takes longer than the session waits. No thread may raise afterwards."""
    monkeypatch.setattr(on_machines, "END_SECONDS", 0.2)

    def slow_from_12(number):
        x, y = made(number)
        return x + tf.cond(number < 12, lambda: tf.zeros((), x.dtype), _slow), y

    model = seeded(learning)
    with DistributedModel(model, network.pair(), "AllReduce") as front:
        dataset = untuned(tf.data.Dataset.range(40).map(slow_from_12).batch(5, drop_remainder=True).prefetch(1))
        front.fit(dataset, epochs=1, steps_per_epoch=2, verbose=0, shuffle=False)
        assert ON_MACHINES in str(front.plan())
    for thread in threading.enumerate():
        if thread.name in ("autodist-end", "autodist-pipeline-end"):
            thread.join(60)
            assert not thread.is_alive(), thread.name


def _slow():
    """Zero, after some seconds in one operation, which nothing interrupts."""
    square = tf.random.stateless_normal((2200, 2200), [1, 2], dtype=tf.float64)
    return 0.0 * tf.reduce_sum(tf.linalg.svd(square, compute_uv=False))
