"""Batch normalization in TensorFlow's fused kernel: of which layers, that it is used, and that numbers stay."""

from functools import partial

import keras
import numpy as np
import pytest
from keras import layers

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel
from autodist_keras.capture import batch_norm_kernel
from tests.support.compare import relative_error
from tests.support.graphs import captured
from tests.support.training import distributed, seeded

KERNEL = "FusedBatchNormV3"
Norm = partial(layers.BatchNormalization, dtype="float32")
FULL = {
    "last": ((2, 3, 4), Norm),
    "first": ((4, 3, 2), partial(Norm, axis=1, momentum=0.5)),
    "three_axes": ((6, 4), partial(Norm, scale=False)),
    "three_axes_first": ((4, 6), partial(Norm, axis=1, center=False)),
    "five_axes": ((2, 1, 3, 4), partial(Norm, axis=4, epsilon=0.1, scale=False, center=False)),
    "frozen": ((2, 3, 4), partial(Norm, trainable=False)),
}
HALF = {
    "mixed": ((2, 3, 4), partial(Norm, dtype="mixed_float16")),
    "first_mixed": ((4, 3, 2), partial(Norm, dtype="mixed_bfloat16", axis=1)),
    "pure": ((2, 3, 4), partial(Norm, dtype="bfloat16")),
}


class OwnCall(layers.BatchNormalization):
    """Adds one."""

    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask) + 1


KERASS_OWN = {
    "float64": ((2, 3, 4), layers.BatchNormalization),
    "two_axes": ((24,), Norm),
    "other_axis": ((2, 3, 4), partial(Norm, axis=2)),
    "renorm": ((2, 3, 4), partial(Norm, renorm=True)),
    "synchronized": ((2, 3, 4), partial(Norm, synchronized=True)),
    "epsilon": ((2, 3, 4), partial(Norm, epsilon=1e-6)),
    "own_call": ((2, 3, 4), partial(OwnCall, dtype="float32")),
    "masked": ((6, 4), lambda: keras.Sequential([layers.Masking(), Norm(), layers.GlobalAveragePooling1D()])),
}


def model_of(norms, **options):
    """A model in which each layer gets the same 24 features in its own shape."""
    dtype = options.get("dtype", "float32")
    rows = layers.Dense(24, name="before", dtype=dtype)(inputs := keras.Input((24,), dtype=dtype))
    normed = [make(**options)(layers.Reshape(shape, dtype=dtype)(rows)) for shape, make in norms.values()]
    together = layers.Concatenate(dtype=dtype)([layers.Flatten(dtype=dtype)(each) for each in normed])
    model = keras.Model(inputs, layers.Dense(1, name="behind", dtype=dtype)(layers.Activation("tanh")(together)))
    model.compile("sgd", "mse")
    return model


def data():
    random = np.random.default_rng(1)
    return random.normal(1.0, 2.0, (7, 24)), random.normal(size=(7, 1))


def train(front):
    """What two steps leave, and what is predicted then."""
    x, y = data()
    for _ in range(2):
        front.train_on_batch(x, y)
    return {**{each.path: each.numpy() for each in front.weights}, "predicted": front.predict(x, verbose=0)}


def assert_near(expected, actual, allowed):
    for (name, value), other in zip(expected.items(), actual.values(), strict=True):
        assert relative_error(np.float64(value), np.float64(other)) < allowed, name


def test_layers_in_the_kernel_have_the_numbers_of_float64():
    reference, model = seeded(partial(model_of, FULL, dtype="float64")), seeded(partial(model_of, FULL))
    model.set_weights(reference.get_weights())
    with distributed(model, replicas=1, fused_kernels=True) as front:
        assert_near(train(reference), train(front), 1e-5)
        assert "note: normalized by FusedBatchNormV3: batch_normalization" in front.plan()
        assert not any("call" in vars(layer) for layer in front.layers)


FEW = {name: FULL[name] for name in ("last", "three_axes", "frozen")}


@pytest.mark.parametrize(("norms", "allowed"), [(FEW, 1e-5), (HALF, 2e-2)], ids=["full", "half"])
def test_replicas_in_the_kernel_have_the_numbers_and_notes_of_kerass_operations(norms, allowed):
    found, plans = [], []
    for fused in (False, None):
        with distributed(seeded(partial(model_of, norms)), fused_kernels=fused) as front:
            found.append(train(front))
            plans.append(front.plan().splitlines())
    assert_near(*found, allowed)
    own, said = plans[0], [line for line in plans[1] if KERNEL in line]
    assert [line for line in plans[1][1:] if "(fused_kernels=False" not in line] == own[1:]
    assert len(said) == 1 and "batch_normalization" in said[0]


def test_each_layer_has_one_kernel_and_other_layers_none():
    x, y = data()
    several, none = (
        [node.op for node in captured(seeded(partial(model_of, norms)), x, y, fused_kernels=True).item.graph_def.node]
        for norms in (FULL | HALF, KERASS_OWN)
    )
    assert [several.count(op) for op in (KERNEL, "FusedBatchNormGradV3")] == [len(FULL | HALF)] * 2
    assert KERNEL not in none


def one_norm():
    return model_of({"last": ((2, 3, 4), Norm)})


def test_xla_gets_kerass_operations():
    with distributed(one_norm()) as front:
        before = front.plan()
        front.model.jit_compile = True
        assert KERNEL in before and KERNEL not in front.plan()


@pytest.mark.parametrize(("replicas", "chosen", "expected"), [
    (1, None, False), (2, None, True), (1, True, True), (2, False, False),
])  # fmt: skip
def test_by_default_several_replicas_use_kernels_and_a_single_one_does_not(replicas, chosen, expected):
    front = DistributedModel(one_norm(), ResourceSpec.local(cpus=replicas), fused_kernels=chosen)
    assert front.fused_kernels is chosen
    assert [(kernel in front.plan()) for kernel in (KERNEL, "ResourceApplyGradientDescent")] == [expected] * 2


def test_a_formula_that_a_trial_cannot_show_equal_is_not_replaced(monkeypatch):
    moments = layers.BatchNormalization._moments

    def larger(self, inputs, mask):
        mean, variance = moments(self, inputs, mask)
        return mean, variance * 1.001

    front = DistributedModel(one_norm(), ResourceSpec.local(cpus=2))
    batch_norm_kernel._difference.cache_clear()
    with monkeypatch.context() as patches:
        patches.setattr(layers.BatchNormalization, "_moments", larger)
        assert KERNEL not in front.plan()
    batch_norm_kernel._difference.cache_clear()
    assert KERNEL in front.plan()
