"""What Keras and TensorFlow do with the names of the seams: found in their code, so that another version shows it."""

import dis
import inspect
from types import CodeType

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.seams.seam import Seam, owner
from autodist_core.seams.table import OP_DEF
from autodist_core.seams.table import TABLE as CORE
from autodist_keras.seams import FUSED, KEPT, LOOPS, LOSSES, METRICS, RESUME, SYNCHRONIZED, TABLE
from autodist_keras.training.step_functions import SIZED
from tests.support.made_data import Batches

pytestmark = pytest.mark.oldest
AHEAD = "making a step's variables before it is traced"
RECOMPILED = "seeing that a model was compiled again"
NUMBERS = "giving each replica random numbers of its own"
_EPOCH = "keras.src.trainers.epoch_iterator.EpochIterator"
_COMPILE = "keras.src.trainers.compile_utils"
_PY_DATASET = "keras.src.trainers.data_adapters.py_dataset_adapter.PyDatasetAdapter"
_FUNC_GRAPH = "tensorflow.python.framework.func_graph.FuncGraph"
_FUNCTIONS = "tensorflow.python.eager.polymorphic_function.atomic_function.AtomicFunction"

STORED = {
    Seam("keras.Model", "train_function", LOOPS): "fit train_on_batch",
    Seam("keras.Model", "test_function", LOOPS): "evaluate test_on_batch",
    Seam("keras.Model", "predict_function", LOOPS): "predict predict_on_batch",
    Seam("keras.optimizers.Optimizer", "_trainable_variables", "naming the variable of each gradient"): "",
    Seam("keras.optimizers.SGD", "momentums", FUSED): "update_step",
    Seam("keras.optimizers.Adam", "_momentums", FUSED): "update_step",
    Seam("keras.optimizers.Adam", "_velocities", FUSED): "update_step",
    Seam("keras.Model", "_compile_loss", LOSSES): "compute_loss",
    Seam(f"{_COMPILE}.CompileLoss", "_flat_losses", LOSSES): "call",
    Seam("keras.losses.Loss", "reduction", LOSSES): "__call__",
    Seam("keras.Model", "_compile_metrics", RECOMPILED): "compute_metrics",
    Seam("keras.Model", "_loss_tracker", RECOMPILED): "train_step",
    Seam(f"{_COMPILE}.CompileMetrics", "_user_metrics", AHEAD): "",
    Seam(f"{_COMPILE}.CompileMetrics", "_user_weighted_metrics", AHEAD): "",
    Seam("keras.Sequential", "_functional", AHEAD): "",
    Seam("keras.metrics.MeanMetricWrapper", "_fn", METRICS): "update_state",
    Seam("keras.metrics.MeanMetricWrapper", "_fn_kwargs", METRICS): "update_state",
    Seam("keras.layers.BatchNormalization", "_reduction_axes", SYNCHRONIZED): "",
    Seam("keras.layers.Layer", "_seed_generators", "the plan's note on random numbers"): "",
    Seam("keras.Variable", "_value", "showing callbacks the trained weights"): "value",
    Seam("keras.Variable", "_initializer", "models whose variables have no values"): "_deferred_initialize",
    Seam("keras.Model", "_initial_epoch", RESUME): "fit",
    Seam(_EPOCH, "_steps_seen", RESUME): "_enumerate_iterator",
    Seam(_EPOCH, "_current_iterator", RESUME): "_enumerate_iterator",
    Seam(_EPOCH, "_num_batches", RESUME): "_enumerate_iterator",
    Seam(_EPOCH, "data_adapter", RESUME): "_enumerate_iterator",
    Seam(_PY_DATASET, "enqueuer", RESUME): "on_epoch_begin on_epoch_end _get_iterator",
    Seam("keras.src.backend.tensorflow.trainer.TFEpochIterator", "_distributed_dataset", KEPT): "_get_iterator",
    Seam("keras.Model", "_eval_epoch_iterator", KEPT): "fit",
    Seam("keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter", "_inputs", KEPT): "get_tf_dataset",
    Seam(
        "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable", "_handle", "seeing looks at variables"
    ): "handle",
    Seam("tensorflow.python.framework.registry.Registry", "_registry", "releasing the graphs of traced steps"): "",
    Seam("tensorflow.compat.v1.Session", "_closed", "dropping a session whose servers are gone"): "close",
    Seam(_FUNC_GRAPH, "control_outputs", "running the side effects of a step"): "",
    Seam(_FUNC_GRAPH, "inputs", "following gradients into nested functions"): "",
    Seam(_FUNC_GRAPH, "outputs", "following gradients into nested functions"): "",
    Seam(
        "tensorflow.python.autograph.pyct.error_utils.ErrorMetadataBase", "translated_stack",
        "naming the user's line in an error",
    ): "",
}  # fmt: skip
"""Attributes that a method of the owner assigns on `self`, and the methods that must use them."""

CALLERS = {
    "make_train_function": "fit train_on_batch", "train_step": "make_train_function",
    "make_test_function": "evaluate test_on_batch", "test_step": "make_test_function",
    "make_predict_function": "predict predict_on_batch", "predict_step": "make_predict_function",
    "reset_metrics": "fit", "get_metrics_result": "_get_metrics_result_or_logs", "apply": "apply_gradients",
    "apply_gradients": "keras.Model.train_step", "scale_loss": "keras.Model.train_step",
    "_aggregate_additional_loss": "compute_loss", "_moments": "call", "_maybe_symbolic_build": "fit",
    "_enumerate_iterator": "__iter__", "_get_iterator": "_enumerate_iterator", "_create_iterator": "__init__",
    "get_global_attribute": "keras.src.random.seed_generator.global_seed_generator",
    "call_function": f"{_FUNCTIONS}.call_flat",
}  # fmt: skip
"""Methods that must use a name, because a hook on it has no effect otherwise: of its owner, or by dotted name."""

PARAMETERS = {
    "keras.Model.make_train_function": "force", "keras.Model.make_test_function": "force",
    "keras.Model.make_predict_function": "force", "keras.Model._maybe_symbolic_build": "iterator data_batch",
    "keras.Model._aggregate_additional_loss": "loss", "keras.losses.Loss.call": "y_true y_pred",
    "keras.optimizers.Optimizer.apply": "grads trainable_variables", "keras.optimizers.Optimizer.scale_loss": "loss",
    "keras.optimizers.Optimizer._get_variable_index": "variable",
    "keras.optimizers.Optimizer.update_step": "gradient variable learning_rate",
    "keras.metrics.Mean.update_state": "values sample_weight", "keras.metrics.Sum.update_state": "values sample_weight",
    "keras.metrics.MeanMetricWrapper.update_state": "y_true y_pred sample_weight",
    "keras.layers.BatchNormalization._moments": "inputs mask",
    "keras.layers.BatchNormalization.call": "inputs training mask",
    "keras.layers.Layer._flatten_layers": "include_self recursive",
    f"{_EPOCH}._enumerate_iterator": "", f"{_EPOCH}._get_iterator": "",
    "tensorflow.compat.v1.Session._make_callable_from_options": "callable_options",
    "tensorflow.python.eager.context.Context.call_function": "name tensor_inputs num_outputs",
    "tensorflow.python.data.ops.iterator_ops.OwnedIterator._create_iterator": "dataset",
}  # fmt: skip
"""The parameters, after `self`, of the methods that a hook replaces."""

WRITTEN = {
    Seam("keras.random.SeedGenerator", "seed_generator_state", NUMBERS): "__init__",
    Seam("tensorflow.random.Generator", "StateVar", NUMBERS): "_create_variable",
}
"""Strings by which something is recognised, and the method that writes them."""


def codes(function):
    """The code of a function and of those that it defines."""
    function = function.fget if isinstance(function, property) else function
    waiting = [getattr(inspect.unwrap(function), "__code__", None)]
    while waiting:
        if code := waiting.pop():
            yield code
            waiting.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))


def stores(kind, name):
    """Whether a method of a class, or the setter of a property, assigns an attribute of this name."""
    values = [value for base in kind.__mro__[:-1] for value in vars(base).values()]
    functions = [part for value in values for part in (value, getattr(value, "fset", None)) if callable(part)]
    return any(
        instruction.opname == "STORE_ATTR" and instruction.argval == name
        for function in functions for code in codes(function) if name in code.co_names
        for instruction in dis.get_instructions(code)
    )


def method(caller, seam):
    where, _, name = caller.rpartition(".")
    return getattr(owner(where or seam.owner), name)


@pytest.mark.parametrize("seam", STORED, ids=lambda seam: seam.label)
def test_instances_have_the_attribute(seam):
    assert stores(owner(seam.owner), seam.name)
    for caller in STORED[seam].split():
        assert any(seam.name in code.co_names for code in codes(method(caller, seam))), caller


@pytest.mark.parametrize("name", CALLERS)
def test_the_name_is_used(name):
    seam = next(seam for seam in (*TABLE, *CORE) if seam.name == name)
    for caller in CALLERS[name].split():
        assert any(name in code.co_names for code in codes(method(caller, seam))), caller


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_parameters_are_those_of_the_hook(name):
    assert name in {f"{seam.owner}.{seam.name}" for seam in (*TABLE, *CORE)}
    assert list(inspect.signature(owner(name)).parameters) == ["self", *PARAMETERS[name].split()]


@pytest.mark.parametrize("seam", WRITTEN, ids=lambda seam: seam.label)
def test_the_string_is_written(seam):
    assert any(seam.name in code.co_consts for code in codes(method(WRITTEN[seam], seam)))


def test_another_name_is_neither_stored_nor_used():
    assert not stores(keras.Model, "_no_such_name") and not stores(keras.Model, "make_train_function")
    assert not any("train_step" in code.co_names for code in codes(keras.Model.fit))


def stateful_draws_have_seeds():
    definition = OP_DEF.get()("RandomUniform")
    return definition.is_stateful and "seed2" in {attribute.name for attribute in definition.attr}


def losses_are_named_tuples():
    return "loss" in owner(f"{_COMPILE}.CompileLoss").Loss._fields


def metrics_are_added_up():
    return inspect.signature(keras.metrics.Metric.add_variable).parameters["aggregation"].default == "sum"


def models_are_in_keras():
    return keras.Sequential.__module__.startswith("keras.")


def take_counts_from_the_end():
    with tf.Graph().as_default() as graph:
        table, rows = (tf.compat.v1.placeholder(*what) for what in ((tf.float32, (4, 2)), (tf.int32, (None,))))
        keras.ops.take(table, rows, axis=0)
    selects = [operation for operation in graph.get_operations() if operation.type == "SelectV2"]
    return [[part.op.type for part in select.inputs][:2] for select in selects] == [["Less", "AddV2"]]


def adapters_are_taken():
    adapters = "keras.src.trainers.data_adapters"
    adapter = owner(f"{adapters}.array_data_adapter").ArrayDataAdapter(np.zeros((1, 1)))
    return owner(adapters).get_data_adapter(x=adapter) is adapter


def first_sizes_are_traced():
    """Where a loss of several is logged, Keras counts a batch by its size if that is known while a step is traced."""
    x, y = keras.Input((1,)), np.array([1.0, 1.0, 1.0, 0.0, 0.0])
    model = keras.Model(x, [keras.layers.Dense(1, name=name)(x) for name in ("a", "b")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    logged = model.fit(np.zeros((5, 1)), [y, y], batch_size=3, shuffle=False, verbose=0).history
    return logged["a_loss"] == [(3 * 1.0 + 1 * 0.0) / (3 + 1) if SIZED else (1 * 1.0 + 1 * 0.0) / (1 + 1)]


def epochs_make_the_order():
    def order(makes):
        adapter = owner(_PY_DATASET)(Batches(lambda index: np.array([index]), 8), shuffle=True)
        for made in (makes, True):
            keras.utils.set_random_seed(1)
            adapter.on_epoch_begin()
            batches = list(adapter._get_iterator()) if made else []
            adapter.on_epoch_end()
        return batches

    return order(True) == order(False)


BEHAVIOURS = {
    Seam("tensorflow", "stateful draws have an attribute seed2", NUMBERS): stateful_draws_have_seeds,
    Seam("keras", "CompileLoss.Loss is a named tuple with a field loss", LOSSES): losses_are_named_tuples,
    Seam(
        "keras", "the variables of a metric are added up over replicas unless it says otherwise", METRICS
    ): metrics_are_added_up,
    Seam("keras", "models of Keras's own are classes in modules below keras", AHEAD): models_are_in_keras,
    Seam(
        "keras", "keras.ops.take makes negative indices count from the end by SelectV2, Less and AddV2",
        "adding up the rows of embeddings",
    ): take_counts_from_the_end,
    Seam(
        "keras", "a loop takes the data from an adapter of Keras's that is passed as x", KEPT
    ): adapters_are_taken,
    Seam(
        "keras", "since 3.16, a step is traced for the size of the first batch, and once more for all others", LOOPS
    ): first_sizes_are_traced,
    Seam(
        "keras", "the order of a PyDataset's batches depends on random and on the epochs that its adapter has counted",
        RESUME,
    ): epochs_make_the_order,
}  # fmt: skip


@pytest.mark.parametrize("seam", BEHAVIOURS, ids=lambda seam: seam.name)
def test_the_package_behaves_so(seam):
    assert BEHAVIOURS[seam]()
