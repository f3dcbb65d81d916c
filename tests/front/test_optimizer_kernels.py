"""Updates in TensorFlow's training kernels: which optimizers have one, that it is used, and that numbers stay."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel
from autodist_keras.capture.optimizer_kernels import kernels_of
from tests.support.compare import assert_equally_trained, relative_error
from tests.support.graphs import ops_of, training_graph
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


NEAR_ONE = {
    "adam-1": (lambda: ADAM(0.02, beta_1=0.99, beta_2=0.999999), "ResourceApplyAdam"),
}
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
