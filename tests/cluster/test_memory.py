"""The memory of the program while machines train, and when it has the state again."""

import threading
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.runtime import recipe, transfers
from autodist_core.runtime.recovery import on_disk
from autodist_core.runtime.recovery.on_disk import OnDisk
from autodist_core.strategy import Sharded
from autodist_core.training import training
from autodist_keras import DistributedModel, huge_files, without_values
from tests.cluster.over_hosts import nothing_left, sent_by
from tests.conftest import OF_KERAS
from tests.support.compare import assert_same, in_order, state_in_order

pytestmark = [pytest.mark.usefixtures("float64", "known_hosts"), pytest.mark.filterwarnings(OF_KERAS)]

WIDTH = 400
OPTIONS = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
STATE = 2 * 8 * WIDTH**2
"""The bytes of the kernel and of its momentum. Each of them has more than 1 MiB."""


def held(model: keras.Model) -> int:
    """The bytes that TensorFlow has in this process for a model's variables, read in a way of which nobody is told."""
    variables = [each.value for each in (*model.weights, *model.optimizer.variables)]
    values = [tf.raw_ops.ReadVariableOp(resource=vars(each)["_handle"], dtype=each.dtype) for each in variables]
    return sum(value.shape.num_elements() * value.dtype.size for value in values)


def made(scope: AbstractContextManager | None = None) -> keras.Model:
    keras.utils.set_random_seed(3)
    with scope or nullcontext():
        model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH, use_bias=False)])
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mse")
    if scope is None:
        model.optimizer.build(model.trainable_variables)
    return model


class Measures(keras.callbacks.Callback):
    """Measures after each step; after the first epoch, saves the model, looks at the kernel and halves it."""

    def __init__(self, file):
        super().__init__()
        self.found, self.file = [], file

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(held(self.model))

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.model.save(self.file)
            self.found.append(held(self.model))
            self.looked = in_order(self.model.weights)
            self.model.weights[0].assign(self.looked["0"] / 2)


def test_the_program_has_no_state_while_machines_have_it(network, monkeypatch, tmp_path):
    monkeypatch.setattr(OnDisk, "most_in_memory", 0)
    random = np.random.default_rng(3)
    x, y = random.normal(size=(2, 8, WIDTH))
    alone, model, of_one = made(), made(), Measures(tmp_path / "alone.keras")
    measures = Measures(tmp_path / "distributed.keras")
    alone.fit(x, y, callbacks=[of_one], **OPTIONS)
    alone.fit(x, y, **OPTIONS)
    with DistributedModel(model, network.pair(), "AllReduce") as dm:
        dm.fit(x, y, callbacks=[measures], **OPTIONS)
        assert len(measures.found) == 5  # the file was written without the state in this program
        # The agents have described their machines.
        assert [each.verdict for each in dm.plan(x[:4], y[:4]).table.memory] == ["fits"] * 2
        assert max(measures.found) < 0.01 * STATE < STATE <= held(model)
        assert_same(of_one.looked, measures.looked)
        files = [keras.saving.load_model(each.file) for each in (of_one, measures)]
        assert_same(*map(state_in_order, files))
        # The agent of the program's machine has freed its copies by now, and gets them again.
        dm.evaluate(x, y, batch_size=4, verbose=0)
        dm.fit(x, y, **OPTIONS)
        assert_same(*map(state_in_order, (alone, model)))
    assert nothing_left(network) == []


@pytest.mark.parametrize("scope, kept", [(without_values, None), (nullcontext, "machines"), (nullcontext, None)])
def test_the_state_of_a_model_stays_on_the_machines(scope, kept, network, monkeypatch, tmp_path):
    monkeypatch.setattr(OnDisk, "most_in_memory", 0)
    monkeypatch.setattr(training, "machine_resources", lambda: {"memory_free": STATE - 1})
    x, y = np.random.default_rng(3).normal(size=(2, 8, WIDTH))
    alone, model = made(), made(scope())
    with DistributedModel(model, network.pair(), "PartitionedPS", keep_state=kept) as dm:
        alone.fit(x, y, **OPTIONS)
        dm.fit(x, y, **OPTIONS)
        dm.save(tmp_path / "between.keras")
        read = keras.saving.load_model(tmp_path / "between.keras")
        assert_same(*map(state_in_order, (alone, read)))
        assert dm.evaluate(x, y, verbose=0) == pytest.approx(alone.evaluate(x, y, verbose=0), rel=1e-12)
        np.testing.assert_allclose(model(x).numpy(), alone(x).numpy(), rtol=0, atol=1e-12)  # the kernel comes home
        dm.strategy = "AllReduce"
        alone.fit(x, y, **OPTIONS)
        dm.fit(x, y, **OPTIONS)
        assert held(model) < 0.01 * STATE
    assert held(model) < 0.01 * STATE
    alone.fit(x, y, **OPTIONS)
    model.fit(x, y, **OPTIONS)
    assert_same(*map(state_in_order, (alone, model)))
    assert held(model) >= STATE
    assert nothing_left(network) == []


@pytest.mark.parametrize("scope, travels", [(nullcontext, 2), (without_values, 0)], ids=["zeros", "all"])
def test_what_machines_can_draw_does_not_travel(scope, travels, network):
    """The kernel is sent to evaluate and to train if the program has it, and the zeros of Adam's two slots are not."""
    with scope():
        model = keras.Sequential([keras.Input((800,)), keras.layers.Dense(800, use_bias=False)])
    model.compile(keras.optimizers.Adam(), "mse")
    with DistributedModel(model, network.pair(), "AllReduce") as dm:
        sent, _ = sent_by(network, lambda: [call(*np.ones((2, 2, 800))) for call in (dm.evaluate, dm.train_on_batch)])
    assert (travels - 0.1) * 8 * 800**2 < sent < (travels + 0.5) * 8 * 800**2


ROWS = 1 << 17
HUGE = 8 * ROWS * 128


def table(scope, rows=ROWS):
    keras.utils.set_random_seed(3)
    with scope:
        model = keras.Sequential([
            keras.Input((3,), dtype="int32"), keras.layers.Embedding(rows, 128), keras.layers.Flatten(),
            keras.layers.Dense(1),
        ])
    model.compile(keras.optimizers.SGD(0.5), "mse", jit_compile=False)
    return model


@contextmanager
def growth_of_memory():
    """The most bytes by which the memory of this process grows in a block, without the pages of files."""
    ended, found = threading.Event(), []

    def used():
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    def watch():
        while not ended.wait(0.005):
            found.append(used() - before)

    before, watcher = used(), threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()


def test_a_huge_table_is_never_whole_in_the_program(network, monkeypatch, tmp_path):
    for module in (on_disk, huge_files):
        monkeypatch.setattr(module, "HUGE_BYTES", HUGE)
    monkeypatch.setattr(recipe, "_PART", 1 << 17)
    monkeypatch.setattr(huge_files, "_PART_BYTES", 1 << 20)
    monkeypatch.setattr(transfers, "PIECE_BYTES", 1 << 20)
    random, file = np.random.default_rng(3), str(tmp_path / "huge.weights.h5")
    x, y = random.integers(0, ROWS, (8, 3)), random.normal(size=(8, 1))
    alone = table(nullcontext())
    alone.fit(x, y, **OPTIONS)
    with DistributedModel(table(nullcontext(), rows=2), network.pair(), "PartitionedPS") as dm:
        dm.fit(x % 2, y, **OPTIONS)  # what TensorFlow itself needs is not measured
    with DistributedModel(table(without_values()), network.pair(), "PartitionedPS") as dm:
        with growth_of_memory() as found:
            dm.fit(x, y, **OPTIONS)
            dm.save_weights(file)
            dm.load_weights(file)  # each value goes to the machines
            dm.fit(x, y, **OPTIONS)
        assert len(found) > 10 and max(found) < 0.7 * HUGE
        alone.fit(x, y, **OPTIONS)
        assert_same(*map(state_in_order, (alone, dm.model)))
    with DistributedModel(table(without_values()), network.pair(), Sharded(weights="gathered")) as dm:
        with growth_of_memory() as found:
            dm.load_weights(file)
        assert max(found, default=0) < 0.3 * HUGE
        read = table(nullcontext())
        read.load_weights(file)
        assert dm.evaluate(x, y, verbose=0) == pytest.approx(read.evaluate(x, y, verbose=0), rel=1e-12)
        np.testing.assert_array_equal(dm.model.weights[0].numpy(), read.weights[0].numpy())
    assert nothing_left(network) == []
