"""Weights that hosts gather: they travel in half precision where layers compute in it, or the strategy says so."""

import keras
import ml_dtypes
import numpy as np
import pytest

from autodist_core.strategy import AllReduce, Sharded
from autodist_keras import DistributedModel
from tests.support.models import stacked

pytestmark = pytest.mark.usefixtures("known_hosts")
WIDTH = 256  # a kernel's gradient travels alone, and not packed with others
GATHERED = Sharded(weights="gathered")


def _weights(spec, strategy, layers, data) -> list[np.ndarray]:
    keras.utils.set_random_seed(3)
    model = stacked(keras.Input((WIDTH,)), *layers(), optimizer=keras.optimizers.SGD(0.1))
    with DistributedModel(model, spec, strategy) as front:
        front.fit(*data, batch_size=len(data[0]) // 3, verbose=0, shuffle=False)
    return model.get_weights()


def test_mixed_precision_computes_the_same_to_the_bit(network):
    def layers():
        # A product with a bias can be one operation with it, which rounds once: that depends on the graph around it.
        return [keras.layers.Dense(WIDTH, "tanh", use_bias=False, dtype="mixed_bfloat16") for _ in range(3)]

    data = np.random.default_rng(0).normal(size=(2, 24, WIDTH)).astype("float32")
    whole, gathered = (
        _weights(network.pair(), strategy, layers, data) for strategy in (AllReduce(factor_rows=0), GATHERED)
    )
    assert all(np.array_equal(one, other) for one, other in zip(whole, gathered, strict=True))


def test_wire_dtype_rounds_what_travels_and_nothing_else(network, float64):
    x, y = np.random.default_rng(0).normal(size=(2, 8, WIDTH))
    keras.utils.set_random_seed(3)
    layer = keras.layers.Dense(WIDTH, use_bias=False)
    layer.build((None, WIDTH))
    before = layer.kernel.numpy()

    def rounded(value):
        return value.astype(ml_dtypes.bfloat16).astype("float64")

    def gradient(x, y):
        return x.T @ (x @ rounded(before) - y) * 2 / y.size

    parts = [rounded(gradient(x[rows], y[rows]) / 2) for rows in (slice(0, 4), slice(4, 8))]
    model = stacked(keras.Input((WIDTH,)), layer, optimizer=keras.optimizers.SGD(0.1))
    with DistributedModel(model, network.pair(), Sharded(weights="gathered", wire_dtype="bfloat16")) as front:
        assert "note: not exact: wire_dtype=bfloat16 is lossy" in str(front.plan(x, y))
        front.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    np.testing.assert_allclose(layer.kernel.numpy(), before - 0.1 * sum(parts), rtol=0, atol=1e-12)
