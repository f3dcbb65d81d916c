"""What only a real step shows is tried where it is relied on, so that a changed Keras gives an error, not numbers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core import ResourceSpec
from autodist_core.capture import tape
from autodist_core.errors import SeamError
from autodist_core.runtime.data_pipelines import SeedGenerators
from autodist_core.seams.table import TABLE as CORE
from autodist_core.training import watching
from autodist_keras import DistributedModel
from autodist_keras.capture import custom_gradients, optimizer_kernels
from autodist_keras.capture.hooks import hook
from autodist_keras.seams import TABLE, check
from tests.support.models import stacked

pytestmark = pytest.mark.oldest
X, Y = np.arange(15.0).reshape(5, 3) / 15, np.ones((5, 1))


@pytest.fixture(autouse=True)
def checked():
    """The names were checked before: what follows is a change that they do not show."""
    check()


def wrapped(*layers, optimizer="sgd", loss="mse", **kwargs):
    model = stacked(keras.Input((3,)), *layers, keras.layers.Dense(1), optimizer=optimizer, loss=loss, **kwargs)
    return DistributedModel(model, ResourceSpec.local(cpus=2), "AllReduce")


def fit(*layers, **kwargs):
    with wrapped(*layers, **kwargs) as dm:
        before = [variable.numpy() for variable in dm.model.variables]
        try:
            dm.fit(X, Y, batch_size=5, verbose=0)
        finally:
            after = [variable.numpy() for variable in dm.model.variables]
            assert all((a == b).all() for a, b in zip(before, after, strict=True)), "what is refused trains nothing"


def loop_asks(patches):
    patches.setattr(keras.Model, "predict", lambda self, x: np.zeros(5))
    with wrapped() as dm:
        dm.predict(X)


def loop_iterates(patches):
    def fit(self, *batch):
        self.make_train_function()
        self.train_function(batch)

    patches.setattr(keras.Model, "fit", fit)
    with wrapped() as dm:
        dm.fit(X, Y)


def step_applies(patches):
    patches.setattr(keras.optimizers.Optimizer, "apply_gradients", lambda self, pairs: list(pairs))
    fit()


def step_scales(patches):
    step = keras.Model.train_step
    names = tuple("_renamed" if name == "scale_loss" else name for name in step.__code__.co_names)
    patches.setattr(keras.optimizers.Optimizer, "_renamed", lambda self, loss: loss, False)
    patches.setattr(step, "__code__", step.__code__.replace(co_names=names))
    fit()


def losses_are_asked(patches):
    kind = type(wrapped().model._compile_loss)
    patches.setattr(kind, "call", lambda self, y, p, w=None: tf.reduce_mean(tf.square(y - p)))
    fit()


def loss_calls(patches):
    patches.setattr(keras.losses.Loss, "__call__", lambda self, y, p, w=None: tf.reduce_mean(tf.square(y - p)))
    fit()


def metric_calls(patches):
    # With the same function, so that the metric is still hooked.
    update = keras.metrics.MeanMetricWrapper.update_state
    names = tuple("_renamed" if name == "_fn" else name for name in update.__code__.co_names)
    patches.setattr(keras.metrics.MeanMetricWrapper, "_renamed", staticmethod(keras.losses.mean_absolute_error), False)
    patches.setattr(update, "__code__", update.__code__.replace(co_names=names))
    fit(metrics=["mae"])


def norm_asks(patches):
    call = keras.layers.BatchNormalization.call
    names = tuple("_renamed" if name == "_moments" else name for name in call.__code__.co_names)
    patches.setattr(keras.layers.BatchNormalization, "_renamed", keras.layers.BatchNormalization._moments, False)
    patches.setattr(call, "__code__", call.__code__.replace(co_names=names))
    fit(keras.layers.BatchNormalization(synchronized=True))


def added_up(patches):
    patches.setattr(keras.Variable, "aggregation", property(lambda self: "mean"))
    fit()


def formulas(patches):
    optimizer_kernels._difference.cache_clear()
    adam = keras.optimizers.Adam.update_step
    patches.setattr(adam, "__code__", keras.optimizers.Adamax.update_step.__code__)
    patches.setattr(keras.optimizers.Adam, "_m", property(lambda self: self._momentums), False)
    patches.setattr(keras.optimizers.Adam, "_u", property(lambda self: self._velocities), False)
    try:
        fit(optimizer="adam")
    finally:
        optimizer_kernels._difference.cache_clear()


def tape_is_seen(patches):
    patches.setattr(tape, "_COMPUTING_GRADIENTS", {"compute_gradient": "imperative_grad.py"})
    fit()


def graph_is_found(patches):
    patches.setattr(tf.Graph, "_get_function", lambda self, name: None)
    with tf.Graph().as_default() as graph:
        tape.graph_named(graph, "f")


def custom_gradient_is_named(patches):
    patches.setattr(custom_gradients, "forget", lambda graph: 0)
    fit()


def handle_is_read(patches):
    watching._require_looks_are_seen.cache_clear()
    patches.setattr(watching, "_watched", lambda base: type(base)(base.__name__, (base,), {}))
    fit()


def seeds_are_set(patches):
    patches.setattr(tf.raw_ops, "DeserializeIterator", lambda **_: None)
    numbers = tf.data.Dataset.range(3).shuffle(3)
    SeedGenerators.of(numbers).drawn()


BROKEN = {
    "fit, evaluate and predict ask make_train_function and its siblings for what they call": loop_asks,
    "train and test functions are called with an iterator": loop_iterates,
    "the train step calls its optimizer's apply": step_applies,
    "the train step passes its loss to its optimizer's scale_loss": step_scales,
    "CompileLoss calls the losses in _flat_losses": losses_are_asked,
    "Loss.__call__ calls call": loss_calls,
    "MeanMetricWrapper.update_state calls _fn": metric_calls,
    "BatchNormalization.call asks _moments in training": norm_asks,
    "the variables of a Mean or Sum metric are added up over replicas": added_up,
    "an optimizer's formula is that of TensorFlow's training kernel": formulas,
    "what a tape makes remembers the function that computed it": tape_is_seen,
    "the graph of a nested function is found by its name": graph_is_found,
    "an operation on a variable asks for its handle, or for its _handle": handle_is_read,
    "a custom gradient is an IdentityN that names it in _gradient_op_type": custom_gradient_is_named,
    "the state of an iterator of a shuffle has the numbers that its generator of seeds has drawn": seeds_are_set,
}  # fmt: skip
HARMLESS = {"calls say which variables they only read (_read_only_resource_inputs)"}
"""Without this, nothing is wrong: more is refused."""


def test_every_trial_is_tried():
    assert {seam.name for seam in (*TABLE, *CORE) if seam.at_use} == {*BROKEN, *HARMLESS}


@pytest.mark.parametrize("name", BROKEN)
def test_another_behaviour_is_refused(name, monkeypatch, float64):
    seam = next(seam for seam in (*TABLE, *CORE) if seam.name == name)
    with monkeypatch.context() as patches, pytest.raises(SeamError) as caught:
        BROKEN[name](patches)
    assert f"does not behave as {seam.label} (" in str(caught.value) and seam.rests in str(caught.value)


def test_a_hook_on_a_property_is_an_error():
    with pytest.raises(SeamError, match="'built_in'"), hook(wrapped().model, "built_in", True):
        pass
    with pytest.raises(SeamError, match="'layers'"), hook(wrapped().model, "layers", []):
        pass
