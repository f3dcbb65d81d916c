"""`AutoShardPolicy.FILE` and `HINT`: each machine reads its own files, and its rows of each batch come from them.

The first host has one replica and the second has two. A batch of 7 rows has 3 rows of the first host's files, which are
those with even numbers, and 4 of the second's. Only these lie on the second host, so it cannot read others. What is
expected is made of two datasets here, with tf.data alone, and trained on one device.
"""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.strategy import PS, AllReduce
from autodist_keras import DistributedModel
from tests.cluster.over_hosts import LONG_TRAININGS, losing, parts
from tests.support.compare import assert_equally_trained
from tests.support.models import ready
from tests.support.training import SEED, seeded, trained

pytestmark = LONG_TRAININGS
WIDTH, ROWS = 4, (3, 4)
BY_FILE, ENDLESS = "by file: each machine runs its tf.data pipeline", {"epochs": 3, "steps_per_epoch": 4}


@pytest.fixture
def files(network, tmp_path):
    """Five files with 9 to 13 examples. The second host has those with odd numbers."""
    found = []
    for number in range(5):
        values = np.random.default_rng(number).normal(size=(9 + number, WIDTH))
        path = tmp_path / f"{number}.rows"
        for place in (path, *([network.hosts[1].file(path)] if number % 2 else [])):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(values.tobytes())
        found.append(str(path))
    return found


def parsed(record):
    x = tf.ensure_shape(tf.io.decode_raw(record, tf.float64), (WIDTH,))
    return {"x": x, "half": 0.5 * x}, tf.sin(tf.reduce_sum(x, keepdims=True))


def read(names, chosen=lambda names: names):
    return chosen(tf.data.Dataset.from_tensor_slices(names)).interleave(
        lambda name: tf.data.FixedLengthRecordDataset(name, 8 * WIDTH), cycle_length=2
    )


def followed(names, rows):
    """The program of the user goes through it too: its length is not known, and each pass has another order."""
    return read(names).shuffle(6, seed=3).map(parsed, num_parallel_calls=2).batch(rows).prefetch(2)


def foreseen(names, rows):
    """Only the machines make its batches."""
    return read(names).repeat().shuffle(8, seed=5).map(parsed).batch(rows, drop_remainder=True).prefetch(2)


def unseeded(names, rows):
    return read(names).repeat().map(parsed).batch(rows)


def hinted(names, rows):
    hint = tf.data.experimental.SHARD_HINT
    return read(names, lambda names: names.shard(hint, hint)).repeat().map(parsed).batch(rows)


def by_file(dataset, policy="FILE"):
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    return dataset.with_options(options)


def together(kind, names):
    """Batches of each machine's rows, made of two datasets over the files of one machine each."""
    def joined(*shards):
        return tf.nest.map_structure(lambda *tensors: tf.concat(tensors, 0), *shards)

    shards = [
        kind(names[machine::2], rows).unbatch().batch(rows, drop_remainder=True) for machine, rows in enumerate(ROWS)
    ]
    return tf.data.Dataset.zip(*shards).map(joined)


def model():
    inputs = {name: keras.Input((WIDTH,), name=name) for name in ("x", "half")}
    hidden = keras.layers.Dense(5, "tanh", name="hidden")(keras.layers.Concatenate()([inputs["x"], inputs["half"]]))
    built = keras.Model(inputs, keras.layers.Dense(1, name="out")(hidden))
    return ready(built, keras.optimizers.Adam(0.01, name="adam"), "mse", metrics=["mae"])


def run(front, dataset, **options):
    keras.utils.set_random_seed(SEED)
    return front.fit(dataset(), verbose=0, shuffle=False, **options).history


def on_one_device(kind, names, options, weights=None):
    """What one device makes of these batches."""
    plain = seeded(model)
    if weights is not None:
        plain.set_weights(weights)
    if "steps_per_epoch" in options:
        run(plain, lambda: together(kind, names), **options)
        return trained(plain)
    keras.utils.set_random_seed(SEED)
    dataset = together(kind, names)
    # Where the length is unknown, the loop of Keras counts an iteration more on one device.
    for _ in range(options["epochs"]):
        for x, y in dataset:
            plain.train_on_batch(x, y)
    return trained(plain)


CASES = {
    "followed": (followed, {"epochs": 3}), "foreseen": (foreseen, ENDLESS), "without a shuffle": (unseeded, ENDLESS),
    "hinted": (hinted, ENDLESS),
}


@pytest.mark.parametrize("builder", [PS(), AllReduce()], ids=["PS", "AllReduce"])
def test_each_machine_trains_on_its_own_files(network, files, builder):
    with DistributedModel(seeded(model), network.pair(1, 2), builder) as front:
        weights = front.model.get_weights()
        for name, (kind, options) in CASES.items():
            front.model.set_weights(weights)
            front.compile(keras.optimizers.Adam(0.01, name="adam"), "mse", metrics=["mae"])
            policy = "HINT" if kind is hinted else "FILE"
            run(front, lambda kind=kind, policy=policy: by_file(kind(files, 7), policy), **options)
            assert BY_FILE in str(front.plan()), name
            assert ("this program runs it too" in str(front.plan())) == (name == "followed")
            alone = unseeded if kind is hinted else kind  # one device has no shards
            assert_equally_trained(on_one_device(alone, files, options, weights), trained(front.model))


def test_validation_has_the_batches_of_one_device(network, files):
    """These files are on the first host only, so the batches are fed, and none is left out."""
    with DistributedModel(seeded(model), network.pair(1, 2), PS()) as front:
        data = by_file(unseeded(files, 7))
        validation = by_file(followed(files, 7))
        history = front.fit(data, steps_per_epoch=2, verbose=0, shuffle=False, validation_data=validation)
        plan = str(front.plan())
        assert f"the data of the last fit: {BY_FILE}" in plan
        assert "the validation data of the last fit: fed each step: a machine cannot make its first batch" in plan
        once = front.model.evaluate(followed(files, 7), verbose=0, return_dict=True)
        np.testing.assert_allclose(history.history["val_mae"], once["mae"], rtol=1e-12)


@pytest.mark.parametrize("name", ["followed", "foreseen", "foreseen, own files only"])
def test_a_machine_that_was_lost_goes_on_in_its_files(network, files, name):
    """In the middle of a pass, a machine needs the others' files to find its place. Without these, batches are fed."""
    kind, options = CASES[name.partition(",")[0]]
    for path in files if name == "foreseen" else []:
        network.hosts[1].file(path).write_bytes(Path(path).read_bytes())
    found, plan = losing(network, model, lambda front, callbacks: run(
        front, lambda: by_file(kind(files, 7)), callbacks=callbacks, **options), step=8 if kind is followed else 6)
    way = "fed each step: a machine cannot make its first batch" if "only" in name else BY_FILE
    assert way in plan
    assert_equally_trained(on_one_device(kind, files, options), found)


def no_files(names):
    return tf.data.Dataset.range(20).map(lambda number: parsed(tf.strings.as_string(number, width=8 * WIDTH))).batch(5)


def too_few_rows(names):
    return read(names).map(parsed).batch(1)


@pytest.mark.parametrize(
    "dataset, policy, words",
    [
        (no_files, "FILE", "TensorFlow finds no files in it that machines could share out"),
        (too_few_rows, "FILE", "a batch of 1 example leaves a machine without rows"),
        (no_files, "HINT", "TensorFlow finds no shard(SHARD_HINT, SHARD_HINT) in it that machines could share out"),
    ],
)
def test_what_cannot_be_shared_out_is_fed(network, files, dataset, policy, words):
    expected = seeded(model)
    for x, y in dataset(files).take(2):
        expected.train_on_batch(x, y)
    with DistributedModel(seeded(model), network.pair(), PS()) as front:
        run(front, lambda: by_file(dataset(files).take(2), policy))
        assert f"fed each step: {words}" in str(front.plan())
        assert_equally_trained(trained(expected), trained(front.model))


def test_more_machines_than_files_is_an_error(network, files):
    few = pytest.raises(tf.errors.InvalidArgumentError, match="not enough for the required 2 shards")
    with DistributedModel(seeded(model), network.pair(), PS()) as front, few:
        front.fit(by_file(unseeded(files[:1], 4)), steps_per_epoch=2, verbose=0, shuffle=False)


@pytest.mark.parametrize("name", ["followed", "foreseen"])
def test_a_training_goes_on_in_its_files(network, files, name, tmp_path):
    kind, options = CASES[name]
    for path in files:
        network.hosts[1].file(path).write_bytes(Path(path).read_bytes())
    distributed, *_ = parts(model, [network.pair(1, 2)] * 2, tmp_path / "states", lambda front, callbacks: run(
        front, lambda: by_file(kind(files, 7)), callbacks=callbacks, **options
    ), ends=6)  # fmt: skip
    assert_equally_trained(on_one_device(kind, files, options), trained(distributed))
