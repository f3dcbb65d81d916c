"""Training with compressors through Keras: how near it stays, and that what they keep is state like any other."""

import logging
from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import SessionError
from autodist_core.strategy import AllReduce, Parallax
from tests.support.compare import assert_same, named, state_in_order
from tests.support.models import BATCH, dense_data, ready, stacked
from tests.support.training import distributed, seeded, trained

CAST = AllReduce(compressor="HorovodCompressor")
FEEDBACK = AllReduce(compressor="HorovodCompressorEF")
COARSE = AllReduce(compressor="HorovodCompressorEF", wire_dtype="bfloat16")
POWER = AllReduce(compressor="PowerSGDCompressor", power_sgd_rank=1)
KEEPING = [FEEDBACK, POWER]


def _name(builder: AllReduce) -> str:
    return f"{builder.compressor}-{builder.wire_dtype}"


def _model(inputs: int = 3) -> keras.Model:
    layers = [keras.layers.Dense(6, activation="tanh", name="first"), keras.layers.Dense(1, name="out")]
    return keras.Sequential([keras.Input((inputs,), name="x"), *layers], name="small")


def _compiled(optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.5, name="sgd")) -> keras.Model:
    return ready(seeded(_model), optimizer(), "mse")


def _fit(front, epochs: int, x: np.ndarray, y: np.ndarray) -> list[float]:
    return front.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0).history["loss"]


def _data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(31)
    x = random.normal(size=(4 * BATCH + 3, 3))
    return x, np.sin(x @ random.normal(size=(3, 1)))


def _same_bits(one: keras.Model, other: keras.Model) -> bool:
    """Whether two models hold the same, whatever their variables are called: loading may change the paths."""
    values, again = map(state_in_order, (one, other))
    return values.keys() == again.keys() and all(np.array_equal(values[name], again[name]) for name in values)


@cache
def _losses_of_one_device() -> np.ndarray:
    return np.array(_fit(_compiled(), 40, *_data()))


@pytest.mark.parametrize(
    "builder, first, last",
    [(CAST, 1e-3, 1e-3), (FEEDBACK, 1e-3, 1e-3), (COARSE, 1e-2, 1e-2), (POWER, 0.2, 0.05)],
    ids=lambda value: _name(value) if isinstance(value, AllReduce) else None,
)
def test_the_loss_comes_down_as_on_one_device(builder: AllReduce, first: float, last: float):
    """Within `first` of one device's loss in every epoch but the first five, and within `last` at the end."""
    x, y = _data()
    expected = _losses_of_one_device()
    with distributed(_compiled(), replicas=3, share_memory=None, strategy=builder) as front:
        found = np.array(_fit(front, 40, x, y))
    assert not np.array_equal(expected, found), "else nothing was compressed"
    assert expected[-1] < 0.2 * expected[0]
    assert (np.abs(found - expected)[5:] <= first * expected[5:]).all()
    assert abs(found[-1] - expected[-1]) <= last * expected[-1]


@pytest.mark.parametrize("builder", KEEPING, ids=_name)
def test_a_second_fit_closing_and_compiling_again_drop_nothing(builder: AllReduce):
    """The residuals are what the weights still owe to the gradients, whichever session holds them."""
    x, y = _data()
    model = _compiled(lambda: keras.optimizers.SGD(0.1, name="sgd"))
    other = _compiled(lambda: keras.optimizers.SGD(0.1, name="sgd"))
    with distributed(model, share_memory=None, strategy=builder) as front:
        _fit(front, 4, x, y)
    front = distributed(other, share_memory=None, strategy=builder)
    _fit(front, 1, x, y)
    front.evaluate(x, y, verbose=0)
    _fit(front, 1, x, y)
    front.close()
    _fit(front, 1, x, y)
    front.compile(keras.optimizers.SGD(0.1, name="sgd"), "mse")
    _fit(front, 1, x, y)
    front.close()
    assert_same(named(model.weights), named(other.weights), tolerance=0.0)


def test_another_strategy_starts_anew_and_says_so_once(caplog: pytest.LogCaptureFixture):
    x, y = _data()
    with distributed(_compiled(), share_memory=None, strategy=FEEDBACK) as front:
        _fit(front, 1, x, y)
        ids = [front.compressor_state().strategy]
        front.compile("sgd", "mse", strategy=POWER)
        with caplog.at_level(logging.WARNING, logger="autodist"):
            _fit(front, 1, x, y)
            _fit(front, 1, x, y)
        ids.append(front.compressor_state().strategy)
        assert not any("first" in name and "directions" not in name and "error" not in name
                       for name in front.compressor_state().values)  # fmt: skip
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"The compressors start anew: what they kept was strategy {ids[0]}'s, and this is strategy {ids[1]}."
    ]


@pytest.mark.quick("PowerSGDCompressor-float16", "HorovodCompressor-float16")
@pytest.mark.parametrize("builder", [CAST, *KEEPING], ids=_name)
def test_a_saved_model_goes_on_with_the_residuals_that_it_is_handed(builder: AllReduce, tmp_path):
    """A compressor that keeps nothing is no other case: whoever loads need not know which ones keep what."""
    x, y = _data()
    whole = _compiled()
    with distributed(whole, share_memory=None, strategy=builder) as front:
        _fit(front, 4, x, y)
    path = tmp_path / "half_way.keras"
    with distributed(_compiled(), share_memory=None, strategy=builder) as front:
        _fit(front, 2, x, y)
        front.save(path)
        state = front.compressor_state()
    loaded = keras.models.load_model(path)
    with distributed(loaded, share_memory=None, strategy=builder) as front:
        front.set_compressor_state(state)
        assert bool(state.values) == (builder in KEEPING)
        if state.values:
            assert_same(state.values, front.compressor_state().values, tolerance=0.0)
        _fit(front, 2, x, y)
    assert _same_bits(whole, loaded)
    without = keras.models.load_model(path)
    with distributed(without, share_memory=None, strategy=builder) as front:
        _fit(front, 2, x, y)
    assert _same_bits(whole, without) == (builder is CAST), "else the state might as well be nothing"


def test_the_residuals_of_another_model_are_refused():
    x, y = _data()
    with distributed(_compiled(), share_memory=None, strategy=FEEDBACK) as front:
        _fit(front, 1, x, y)
        state = front.compressor_state()
    wider = ready(_model(4), "sgd", "mse")
    x_wide = np.concatenate([x, x[:, :1]], axis=1)
    refusal = r"kernel@replica0 : float64\[4,6\] cannot be set to float64\[3"
    with distributed(wider, share_memory=None, strategy=FEEDBACK) as front:
        front.set_compressor_state(state)
        for _ in range(2):
            with pytest.raises(SessionError, match=refusal):
                _fit(front, 1, x_wide, y)
        front.set_compressor_state(None)
        assert np.isfinite(_fit(front, 1, x_wide, y)).all()


class Checked(keras.layers.Layer):
    """Refuses large numbers, after some thought: long after the gradients are there."""

    def call(self, x):
        slow = tf.fill((500, 500), tf.stop_gradient(x[0, 0]))
        for _ in range(12):
            slow = tf.tanh(slow @ slow)
        tf.debugging.assert_less(x, 100.0 + 0.0 * tf.reduce_max(slow), message="too large")
        return tf.identity(x)


@pytest.mark.quick("in small buckets")
@pytest.mark.parametrize(
    "builder", [*KEEPING, Parallax(compressor="HorovodCompressorEF", bucket_bytes=16)],
    ids=[*map(_name, KEEPING), "in small buckets"],
)
def test_a_step_that_fails_leaves_the_residuals_as_they_were(builder: AllReduce):
    x, y = _data()
    x, y = x[: 2 * BATCH].copy(), y[: 2 * BATCH]

    def build() -> keras.Model:
        tail = [Checked(name="checked"), keras.layers.Dense(4, name="first"), keras.layers.Dense(1, name="out")]
        optimizer = keras.optimizers.SGD(0.1, name="sgd")
        return stacked(keras.Input((3,), name="x"), *tail, optimizer=optimizer, name="checked_model", jit_compile=False)

    bad = x.copy()
    bad[-1, 0] = 1000.0
    with distributed(seeded(build), share_memory=None, strategy=builder) as front:
        _fit(front, 1, x, y)
        before = front.compressor_state().values
        with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
            _fit(front, 1, bad[BATCH:], y[BATCH:])
        assert_same(before, front.compressor_state().values, tolerance=0.0)
        _fit(front, 1, x, y)
        after = front.compressor_state().values
    assert any((after[name] != value).any() for name, value in before.items())


@pytest.mark.quick("PowerSGDCompressor-float16")
@pytest.mark.parametrize("builder", [CAST, *KEEPING], ids=_name)
def test_on_one_replica_a_compressor_does_nothing(builder: AllReduce):
    x, y = _data()
    alone, single = _compiled(), _compiled()
    _fit(alone, 3, x, y)
    with distributed(single, replicas=1, share_memory=None, strategy=builder) as front:
        _fit(front, 3, x, y)
        assert front.compressor_state() is None
    assert_same(trained(alone).state, trained(single).state, tolerance=0.0)


def test_loss_scaling_that_overflows_does_not_poison_the_residuals():
    """A scale far beyond float16 overflows on the wire, step after step, until it has come down."""
    x, y = _data()

    def optimizer() -> keras.optimizers.Optimizer:
        inner = keras.optimizers.SGD(0.1, name="sgd")
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**20, name="scaled")

    model = _compiled(optimizer)
    with distributed(model, share_memory=None, strategy=FEEDBACK) as front:
        losses = _fit(front, 20, x, y)
        assert all(np.isfinite(value).all() for value in front.compressor_state().values.values())
    assert float(model.optimizer.dynamic_scale) < 2.0**20
    assert np.isfinite(losses).all() and losses[-1] < 0.5 * losses[0]


def test_verifying_restores_the_residuals_and_names_what_is_not_exact():
    data = dense_data()
    model = _compiled()
    x, y = data.x[:, :3], data.y[:, :1]
    with distributed(model, share_memory=None, strategy=FEEDBACK) as front:
        _fit(front, 1, x, y)
        before = front.compressor_state().values
        table = front.verify(x[:BATCH], y[:BATCH])
        assert table.splitlines()[-2] == "  note 1: not exact: HorovodCompressorEF is lossy"
        assert_same(before, front.compressor_state().values, tolerance=0.0)


