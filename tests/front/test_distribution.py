"""What `keras.distribution` describes is understood: devices, layouts that split variables, and what is refused."""

import keras
import numpy as np
import pytest

from autodist_core.errors import ResourceSpecError, StrategyError
from autodist_keras import DistributedModel
from tests.support.compare import assert_same

CPUS = ["cpu:0", "cpu:1"]
MESH = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], CPUS)
X, Y = np.arange(14).reshape(7, 2) % 5, np.linspace(-1, 1, 14).reshape(7, 2)


def _model() -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Embedding(5, 4, name="table"), keras.layers.Flatten(), keras.layers.Dense(6, name="large")]
    model = keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(2, name="last")], name="m")
    model.compile("adam", "mse")
    return model


def _layouts(**axes) -> keras.distribution.ModelParallel:
    layouts = keras.distribution.LayoutMap(MESH)
    for name, layout in axes.items():
        layouts[name.replace("__", "/")] = layout
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")


def _trained(front, model: keras.Model) -> dict:
    history = front.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return {"loss": np.array(history.history["loss"])} | {each.path: each.numpy() for each in model.weights}


@pytest.mark.quick("layouts")
@pytest.mark.parametrize("devices, split", [
    (lambda: MESH, {}), (lambda: keras.distribution.DataParallel(devices=CPUS), {}),
    (lambda: _layouts(
        m__large__kernel=(None, "model"), table__embeddings=(None, "model"), last__kernel=("model", "batch"),
    ), {"large/kernel": "axis=1", "table/embeddings": "axis=0", "last/kernel": "axis=0"}),
], ids=["mesh", "data", "layouts"])  # fmt: skip
def test_one_devices_numbers(devices, split):
    plain, model = _model(), _model()
    with DistributedModel(model, devices(), share_memory=False) as front:
        actual = _trained(front, model)
        lines = str(front.plan(X[:4], Y[:4])).splitlines()
    assert_same(_trained(plain, plain), actual)
    assert [name for name, _ in front.resource_spec.replica_devices] == ["localhost:CPU:0", "localhost:CPU:1"]
    found = {line.split(":")[0].strip(): line for line in lines if "split(" in line}
    assert found.keys() == split.keys() and all(f"split({axis}" in found[name] for name, axis in split.items())
    assert any("only its axis 0 is split" in line for line in lines) == bool(split)


def test_layouts_of_other_names_are_noted():
    with DistributedModel(_model(), _layouts(lrage__kernel=(None, "model"))) as front:
        assert "note: the layouts split no variable: a key is searched for in names as m/" in str(front.plan())


@pytest.mark.parametrize("devices, strategy, error, message", [
    (lambda: keras.distribution.DataParallel(devices=["tpu:0"]), None, ResourceSpecError, r"devices \['tpu:0'\]"),
    (lambda: keras.distribution.DataParallel(devices=["cpu:0", "gpu:0"]), None, ResourceSpecError, "'gpu:0'.*expected"),
    (lambda: _layouts(a=("model",)), "PS", StrategyError, "strategy='PS' was given beside a ModelParallel"),
], ids=["TPU", "two kinds", "two strategies"])  # fmt: skip
def test_refused_with_the_reason(devices, strategy, error, message):
    with pytest.raises(error, match=message):
        DistributedModel(_model(), devices(), strategy)


def test_a_layout_that_does_not_fit_its_variable_is_refused():
    with (
        DistributedModel(_model(), _layouts(last__bias=(None, "model"))) as front,
        pytest.raises(StrategyError, match=r"the layout .* does not fit variable 'last/bias' of shape \(2,\)"),
    ):
        front.plan(X[:4], Y[:4])
