"""TensorFlow's kernels for training: of which optimizers and normalizations, that they are used, that numbers stay."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel
from autodist_keras.capture import batch_norm_kernel
from autodist_keras.capture.optimizer_kernels import kernels_of
from tests.support.compare import assert_equally_trained, relative_error
from tests.support.graphs import captured, ops_of, training_graph
from tests.support.models import BATCH, ReferenceModel, dense_data, dense_model, ready
from tests.support.training import compiled, distributed, seeded, train_distributed

SGD, ADAM = keras.optimizers.SGD, keras.optimizers.Adam
FUSED = {
    "sgd": (lambda: SGD(0.1), "ResourceApplyGradientDescent"),
    "decay": (lambda: SGD(0.1, weight_decay=0.01, clipnorm=1.0), "ResourceApplyGradientDescent"),
    "momentum": (lambda: SGD(0.05, momentum=0.9), "ResourceApplyKerasMomentum"),
    "nesterov": (lambda: SGD(0.05, momentum=0.9, nesterov=True), "ResourceApplyKerasMomentum"),
    "adam": (lambda: ADAM(keras.optimizers.schedules.ExponentialDecay(0.02, 2, 0.9)), "ResourceApplyAdam"),
    "averaged": (lambda: ADAM(0.02, use_ema=True, ema_momentum=0.5), "ResourceApplyAdam"),
    "adamw": (lambda: keras.optimizers.AdamW(0.02, weight_decay=0.05), "ResourceApplyAdam"),
    "accumulated": (lambda: ADAM(0.02, gradient_accumulation_steps=2), "ResourceApplyAdam"),
    "scaled": (lambda: keras.optimizers.LossScaleOptimizer(ADAM(0.02), 8.0, 2), "ResourceApplyAdam"),
}


NEAR_ONE = {"adam-1": (lambda: ADAM(0.02, beta_1=0.99, beta_2=0.999999), "ResourceApplyAdam")}
"""Optimizers with `1 - beta` of few digits in float32, and of none in types of fewer bits."""
ROUNDING = {"float64": 1e-12, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
NO_KERNEL = {
    **{name: {"float16", "bfloat16"} for name in ("adam", "averaged", "adamw", "accumulated", "scaled")},
    **{name: {"float32", "float16", "bfloat16"} for name in NEAR_ONE},
}
"""The types in which an update by the kernel differs from Keras's by more than rounding."""


class OwnUpdate(keras.optimizers.SGD):
    """Steps twice as far."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, 2 * learning_rate)


class OwnWrite(keras.optimizers.SGD):
    """Writes differently."""

    def assign_sub(self, variable, value):
        super().assign_sub(variable, value / 2)


class OwnName(keras.optimizers.SGD):
    """Changes nothing of the update."""


@pytest.mark.quick("adam")
@pytest.mark.parametrize("name", FUSED)
@pytest.mark.oldest
def test_a_kernel_changes_nothing_but_the_speed(name: str):
    make, kernel = FUSED[name]
    reference = ReferenceModel("dense", dense_model, dense_data, lambda: {"loss": "mse", "optimizer": make()})
    assert_equally_trained(*(train_distributed(reference, fused_kernels=fused) for fused in (False, True)))
    data = dense_data(BATCH)
    for fused in (False, True):
        graph = training_graph(compiled(reference), data.x, data.y, fused_kernels=fused)
        assert (kernel in ops_of(graph)) == fused


def layers_of_each_type(optimizer):
    inputs = keras.Input((3,))
    policies = [*ROUNDING, "mixed_float16", "mixed_bfloat16"]
    model = keras.Model(inputs, [keras.layers.Dense(1, dtype=policy, name=policy)(inputs) for policy in policies])
    return ready(model, optimizer, "mse")


@pytest.mark.quick("adam-1")
@pytest.mark.parametrize("name", [*FUSED, *NEAR_ONE])
def test_a_kernel_updates_variables_of_the_types_in_which_it_has_kerass_numbers(name: str):
    make, kernel = (FUSED | NEAR_ONE)[name]
    x, y = np.random.default_rng(3).normal(size=(2, 4, 3)).astype("float32"), np.ones((4, 1), "float32")
    own, in_kernels = [], []
    for fused, variables in ((False, own), (True, in_kernels)):
        model = seeded(lambda: layers_of_each_type(make()))
        with distributed(model, fused_kernels=fused) as dm:
            for batch in x:
                dm.train_on_batch(batch, [y] * 6)
            variables += [*model.trainable_variables, *model.optimizer.variables]
            notes = [line for line in dm.plan().splitlines() if kernel in line]
    others = NO_KERNEL.get(name, set())
    for a, b in zip(own, in_kernels, strict=True):
        allowed = 0 if b.dtype in others else ROUNDING.get(b.dtype, 0)
        assert relative_error(a.numpy().astype("float64"), b.numpy().astype("float64")) <= allowed, b.path
    graph = training_graph(model, x[0], [y] * 6, fused_kernels=True)
    used = {tf.as_dtype(node.attr["T"].type).name for node in graph.graph_def.node if node.op == kernel}
    assert used == ROUNDING.keys() - others
    types = " and ".join(each for each in ROUNDING if each in others)
    said = f"variables of {types} are updated by Keras's ops, not by"
    assert any(said in note for note in notes) == bool(others) and any("fused_kernels=False" in note for note in notes)


@pytest.mark.parametrize(
    "optimizer", [OwnUpdate, OwnWrite, keras.optimizers.Lion, keras.optimizers.RMSprop, partial(ADAM, amsgrad=True)]
)
def test_what_has_no_kernel_keeps_its_own_update(optimizer):
    assert not kernels_of([optimizer(0.1)])


def test_a_subclass_that_leaves_the_update_alone_has_the_kernel_of_its_base():
    assert list(kernels_of([OwnName(0.1)])) == ["ResourceApplyGradientDescent"]


def test_an_instance_with_an_update_of_its_own_keeps_it():
    optimizer = keras.optimizers.SGD(0.1)
    object.__setattr__(optimizer, "update_step", lambda gradient, variable, learning_rate: None)
    assert not kernels_of([optimizer])


def test_the_hooks_are_gone_after_training():
    model, data = ready(dense_model(), "adam", "mse"), dense_data(6)
    with DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
        dm.fit(data.x, data.y, epochs=1, verbose=0)
    assert "update_step" not in vars(model.optimizer)


KERNEL = "FusedBatchNormV3"
Norm = partial(layers.BatchNormalization, dtype="float32")
FULL = {
    "last": ((2, 3, 4), Norm),
    "first": ((4, 3, 2), partial(Norm, axis=1, momentum=0.5)),
    "three_axes": ((6, 4), partial(Norm, scale=False)),
    "three_axes_first": ((4, 6), partial(Norm, axis=1, center=False)),
    "five_axes": ((2, 1, 3, 4), partial(Norm, axis=4, epsilon=0.1, scale=False, center=False)),
    "frozen": ((2, 3, 4), partial(Norm, trainable=False)),
    "convolved": ((2, 3, 4), lambda dtype="float32": keras.Sequential([  # no kernel does all three
        layers.Conv2D(4, 1, use_bias=False, dtype=dtype), Norm(dtype=dtype), layers.Activation("tanh", dtype=dtype)])),
}  # fmt: skip
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
    "one_channel": ((4, 6, 1), Norm),
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


FEW = {name: FULL[name] for name in ("last", "convolved", "frozen")}


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
