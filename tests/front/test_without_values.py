"""Models that are built without values: planned at any size, trained from what Keras would have drawn."""

import contextlib
import gc
import threading
import time
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core import ResourceSpec
from autodist_core.errors import ResourceSpecError
from autodist_core.runtime.local import session as local_session
from autodist_core.runtime.local.copies import Copies
from autodist_core.runtime.recovery import on_disk
from autodist_core.strategy import Sharded
from autodist_core.training import has_value
from autodist_keras import DistributedModel, without_values
from tests.support.compare import assert_same, flat, state_in_order

X, Y = np.random.default_rng(5).normal(size=(2, 12, 6))
OPTIONS = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}


def made(scope=None):
    keras.utils.set_random_seed(7)
    with scope or contextlib.nullcontext():
        model = keras.Sequential([
            keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dropout(0.0), keras.layers.Dense(6, "tanh"),
        ])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("strategy", ["AllReduce", "PartitionedPS"])
@pytest.mark.usefixtures("float64")
def test_a_fit_begins_with_the_values_that_keras_would_have_drawn(strategy, replicas):
    plain, model = made(), made(without_values())
    with DistributedModel(model, ResourceSpec.local(cpus=replicas), strategy, share_memory=False) as dm:
        assert dm.plan(X, Y).startswith("strategy")
        np.testing.assert_array_equal(model.layers[0].kernel.numpy(), plain.layers[0].kernel.numpy())
        of_plain, history = plain.fit(X, Y, **OPTIONS).history, dm.fit(X, Y, **OPTIONS).history
        assert_same(state_in_order(plain), state_in_order(model))
        assert dm.evaluate(X, Y, verbose=0) == pytest.approx(plain.evaluate(X, Y, verbose=0), rel=1e-12)
    np.testing.assert_allclose(history["loss"], of_plain["loss"], rtol=1e-12)


def test_plain_keras_may_use_such_a_model():
    plain, model = made(), made(without_values())
    np.testing.assert_array_equal(plain.predict(X, verbose=0), model.predict(X, verbose=0))
    model.fit(X, Y, verbose=0)


@pytest.mark.usefixtures("float64")
def test_what_was_assigned_before_the_first_step_is_the_first_value(tmp_path):
    plain, model = made(), made(without_values())
    plain.layers[0].kernel.assign(np.ones((6, 8)))
    plain.save_weights(tmp_path / "first.weights.h5")
    model.load_weights(tmp_path / "first.weights.h5")
    with DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
        fit(plain, dm)
    assert_same(state_in_order(plain), state_in_order(model))


def test_what_is_assigned_in_the_block_is_the_first_value():
    table = np.arange(12.0).reshape(4, 3)
    with without_values():
        model = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(4, 3, weights=[table])])
    np.testing.assert_array_equal(model.weights[0].numpy(), table)


def test_a_huge_value_that_is_assigned_in_a_scope_stays_there(monkeypatch):
    monkeypatch.setattr(on_disk, "HUGE_BYTES", 8)
    kernel = made(without_values()).layers[0].kernel
    before, value = kernel.numpy(), on_disk.room(kernel.shape, np.dtype("float32"))
    with keras.StatelessScope():
        kernel.assign(value)
    np.testing.assert_array_equal(kernel.numpy(), before)
    kernel.assign(value)
    np.testing.assert_array_equal(kernel.numpy(), value)


def test_all_looks_see_the_value_that_is_trained():
    drawn = np.random.default_rng(3)
    with without_values():
        model = keras.Sequential([
            keras.Input((6,)),
            keras.layers.Dense(6, kernel_initializer=lambda shape, dtype: drawn.normal(size=shape).astype("float16")),
        ])
    model.compile(keras.optimizers.Nadam(0.01), "mse")
    first = model.layers[0].kernel.numpy()
    assert first.dtype == keras.config.floatx()
    with DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
        dm.fit(X, Y, batch_size=12, verbose=0)
    change = np.abs(model.layers[0].kernel.numpy() - first)
    assert 0 < change.max() < 0.02


GATHERED = Sharded(weights="gathered", whole_bytes=0)
OPTIMIZERS = {
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
    "from the weights": lambda: keras.optimizers.ScheduleFreeAdamW(0.01),
}


@pytest.fixture
def apart(float64, monkeypatch):
    """The front of a model whose variables are split over devices of this machine, however small they are."""
    monkeypatch.setattr(local_session, "LARGE_BYTES", 8)
    return partial(DistributedModel, resource_spec=ResourceSpec.local(cpus=3), share_memory=False)


def fit(*fronts):
    for each in fronts:
        each.fit(X, Y, **OPTIONS)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_that_the_trace_builds_makes_the_values_of_its_slots_later(optimizer, apart):
    plain, model = made(), made(without_values())
    plain.compile(optimizer(), "mse")
    model.compile(optimizer(), "mse")
    with apart(model, strategy=GATHERED) as dm:
        dm.plan(X, Y)
        slots = [each for each in model.optimizer.variables if each.shape == model.layers[0].kernel.shape]
        assert slots and not any(has_value(each.value) for each in slots)
        fit(plain, dm)
    assert_same(state_in_order(plain), state_in_order(model))


@pytest.mark.parametrize("kept", [None, "model"])
def test_on_one_machine_the_model_has_no_second_copy_of_what_is_split(kept, apart):
    plain, model = made(), made()
    kernel = model.layers[0].kernel.value
    with apart(model, strategy=GATHERED, keep_state=kept) as dm:
        for call in (fit, lambda each: each.train_on_batch(X, Y)):
            list(map(call, (plain, dm)))
            assert has_value(kernel) == (kept == "model")
            assert dm.evaluate(X, Y, verbose=0) == pytest.approx(plain.evaluate(X, Y, verbose=0), rel=1e-12)
            assert_same(state_in_order(plain), state_in_order(model))
        kernel.assign(2 * kernel)
        plain.layers[0].kernel.assign(2 * plain.layers[0].kernel)
        fit(plain, dm)
        np.testing.assert_allclose(model(X), plain(X), rtol=1e-12)
        dm.strategy = "PS"
        fit(plain, dm)
    assert_same(state_in_order(plain), state_in_order(model))


def test_what_devices_have_outlives_the_front(apart):
    plain, model = made(), made()
    fit(plain, apart(model, strategy="PartitionedPS"))
    gc.collect()
    momentum = model.optimizer.variables[2].value
    np.testing.assert_allclose(tf.gather(momentum, [3, 1]), plain.optimizer.variables[2].numpy()[[3, 1]], rtol=1e-12)
    assert not has_value(momentum)
    fit(plain, model)
    assert_same(state_in_order(plain), state_in_order(model))


@pytest.mark.quick("3")
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_closed_session_leaves_what_it_shared_to_the_others(replicas, apart):
    strategies, trained = {"PartitionedPS": 3, "AllReduce": replicas, GATHERED: 3}, []
    for of_plain in (True, False):
        keras.utils.set_random_seed(7)
        shared = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh")])
        models, fronts = [keras.Sequential([keras.Input((6,)), shared, keras.layers.Dense(6)]) for _ in range(3)], []
        for model, (strategy, cpus) in zip(models, strategies.items(), strict=True):
            model.compile(keras.optimizers.Adam(0.01), "mse")
            fronts.append(apart(model, resource_spec=ResourceSpec.local(cpus=cpus), strategy=strategy))
        used = models if of_plain else fronts
        fit(*(used[position] for position in (2, 0, 1, 2)))
        for position in (1, 0, 2):
            fronts[(position + 1) % 3].close()
            fit(used[position])
        fronts[2].close()
        trained.append({f"{each}": state_in_order(model) for each, model in enumerate(models)})
    assert_same(flat(trained[0]), flat(trained[1]))


def test_who_looks_while_the_session_closes_sees_what_was_trained(apart, monkeypatch):
    plain, model = made(), made()
    read, last_safe, seen = Copies.read, local_session.LocalSession.last_safe, []
    looks = threading.Thread(target=lambda: seen.append(tf.identity(model.layers[0].kernel)))

    def slow(copies, name):
        if threading.current_thread() is looks:
            time.sleep(0.3)
        return read(copies, name)

    def looked_at_meanwhile(session, name):
        if looks.ident is None:
            looks.start()
            time.sleep(0.1)
        return last_safe(session, name)

    with apart(model, strategy=GATHERED) as dm:
        fit(plain, dm)
        monkeypatch.setattr(Copies, "read", slow)
        monkeypatch.setattr(local_session.LocalSession, "last_safe", looked_at_meanwhile)
    looks.join()
    np.testing.assert_allclose(seen[0], plain.layers[0].kernel, rtol=1e-12)
    assert_same(state_in_order(plain), state_in_order(model))


def test_a_model_of_any_size_is_planned():
    with without_values():
        model = keras.Sequential([keras.Input((10**6,)), keras.layers.Dense(10**6, use_bias=False, name="huge")])
    model.compile("adam", "mse")
    with DistributedModel(model, ResourceSpec.local(cpus=2), "PartitionedPS") as dm:
        assert "huge/kernel" in dm.plan()
        assert dm.plan(np.zeros((2, 10**6), "float32"), np.zeros((2, 10**6), "float32")).table.memory[0].peak > 10**12


def test_an_error_in_the_block_leaves_nothing_behind():
    with pytest.raises(ValueError, match="stateless scope") as raised, without_values():
        keras.layers.Dense(2).build((None, 3))
        keras.optimizers.Adam()
    assert "compile and load_model go below it" in raised.value.__notes__[0]
    with keras.StatelessScope():  # at its end Keras gives values to all variables that wait for them
        pass
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    assert model.weights[0].numpy().any()


def test_where_the_state_is_kept_is_one_of_two_places():
    with pytest.raises(ResourceSpecError, match=r"keep_state='away': keep_state is 'model', 'machines' or None\."):
        DistributedModel(made(), keep_state="away")
