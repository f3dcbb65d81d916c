"""The seams into Keras: the names and behaviours of Keras that are not public API and that the project uses.

In: the installed Keras. Out: nothing, or a SeamError that lists the missing names. `autodist_core.seams` says what a
seam is, and has the seams into TensorFlow. `check()` examines both tables when the first model is wrapped. Only a real
step shows some behaviours; the code that relies on one of these checks it there (`AT_USE`).

>>> next(seam.label for seam in TABLE if seam.rests == SYNCHRONIZED)
'BatchNormalization._moments'
"""

import inspect
from functools import cache

import keras
import numpy as np
import tensorflow as tf

from autodist_core.seams.seam import AT_USE, BEHAVIOUR, STORED, TEXT, Seam, examine, owner
from autodist_core.seams.table import TABLE as CORE


@cache
def check() -> None:
    """Raise a SeamError that lists what is missing in Keras and TensorFlow. After a pass, further calls cost nothing.

    >>> check()
    """
    examine((*TABLE, *CORE), "keras", "tensorflow")


def _metrics_are_added_up() -> str:
    default = inspect.signature(keras.metrics.Metric.add_variable).parameters["aggregation"].default
    return "" if default == "sum" else f"the default is {default!r}"


def _losses_are_named_tuples() -> str:
    fields = owner(f"{_COMPILE_LOSS}.Loss")._fields
    return "" if "loss" in fields else f"its fields are {fields}"


def _models_are_in_keras() -> str:
    return "" if keras.Sequential.__module__.startswith("keras.") else f"it is in {keras.Sequential.__module__}"


def _take_counts_from_the_end() -> str:
    with tf.Graph().as_default() as graph:
        table, rows = (tf.compat.v1.placeholder(*what) for what in ((tf.float32, (4, 2)), (tf.int32, (None,))))
        keras.ops.take(table, rows, axis=0)
    for operation in graph.get_operations():
        if operation.type == "SelectV2" and [part.op.type for part in operation.inputs][:2] == ["Less", "AddV2"]:
            return ""
    return f"it makes {', '.join(operation.type for operation in graph.get_operations())}"


def _adapters_are_taken() -> str:
    adapters = "keras.src.trainers.data_adapters"
    adapter = owner(f"{adapters}.array_data_adapter").ArrayDataAdapter(np.zeros((1, 1)))
    found = owner(adapters).get_data_adapter(x=adapter)
    return "" if found is adapter else f"it was a {type(found).__name__}"


_MODEL = "keras.Model"
_LAYER = "keras.layers.Layer"
_OPTIMIZER = "keras.optimizers.Optimizer"
_LOSS = "keras.losses.Loss"
_COMPILE_LOSS = "keras.src.trainers.compile_utils.CompileLoss"
_COMPILE_METRICS = "keras.src.trainers.compile_utils.CompileMetrics"
_NORM = "keras.layers.BatchNormalization"
_EPOCH = "keras.src.trainers.epoch_iterator.EpochIterator"
_TF_EPOCH = "keras.src.backend.tensorflow.trainer.TFEpochIterator"
_ARRAYS = "keras.src.trainers.data_adapters.array_data_adapter.ArrayDataAdapter"
_MEAN_OF_FUNCTION = "keras.metrics.MeanMetricWrapper"

LOSSES = "the correction of losses that are no means over examples"
METRICS = "the correction of metrics on uneven replicas"
FUSED = "the update in TensorFlow's training kernels"
SYNCHRONIZED = "synchronized batch normalization"
VALUELESS = "models whose variables have no values"
AHEAD = "making a step's variables before it is traced"
RECOMPILED = "seeing that a model was compiled again"
FIRST_BATCHES = "reading the first batches of data for plan and verify"
KEPT = "sending arrays and datasets of a loop once to each machine"
RESUME = "going on in the middle of an epoch"
LOOPS = "running distributed steps in Keras's own loops"

GET_MASK = Seam("keras.src.backend.common.masking", "get_keras_mask", LOSSES)
SET_MASK = Seam("keras.src.backend.common.masking", "set_keras_mask", LOSSES)
GLOBAL_ATTRIBUTE = Seam(
    "keras.src.backend.common.global_state", "get_global_attribute", RESUME,
    callers=("keras.src.random.seed_generator.global_seed_generator",),
)
EPOCH_ITERATOR = Seam("keras.src.backend.tensorflow.trainer", "TFEpochIterator", KEPT)

# Checked by the code that relies on them.
LOOP_ASKS = Seam(
    "keras", "fit, evaluate and predict ask make_train_function and its siblings for what they call", LOOPS, AT_USE,
)
LOOP_ITERATES = Seam("keras", "train and test functions are called with an iterator", LOOPS, AT_USE)
STEP_APPLIES = Seam("keras", "the train step calls its optimizer's apply", "cutting a step at its gradients", AT_USE)
STEP_SCALES = Seam(
    "keras", "the train step passes its loss to its optimizer's scale_loss",
    "weighting a replica's loss with its part of the batch", AT_USE,
)
LOSSES_ARE_ASKED = Seam("keras", "CompileLoss calls the losses in _flat_losses", LOSSES, AT_USE)
LOSS_CALLS = Seam("keras", "Loss.__call__ calls call", LOSSES, AT_USE)
METRIC_CALLS = Seam("keras", "MeanMetricWrapper.update_state calls _fn", METRICS, AT_USE)
NORM_ASKS = Seam("keras", "BatchNormalization.call asks _moments in training", SYNCHRONIZED, AT_USE)
ADDED_UP = Seam("keras", "the variables of a Mean or Sum metric are added up over replicas", METRICS, AT_USE)
FORMULAS = Seam("keras", "an optimizer's formula is that of TensorFlow's training kernel", FUSED, AT_USE)


def _loops() -> tuple[Seam, ...]:
    """The names that Keras's loops use in each mode."""
    modes = {
        "train": ("fit", "train_on_batch"), "test": ("evaluate", "test_on_batch"),
        "predict": ("predict", "predict_on_batch"),
    }
    return tuple(
        seam for mode, loops in modes.items() for seam in (
            Seam(_MODEL, f"make_{mode}_function", LOOPS, parameters=("self", "force"), callers=loops),
            Seam(_MODEL, f"{mode}_function", LOOPS, STORED, callers=loops),
            Seam(_MODEL, f"{mode}_step", LOOPS, callers=(f"make_{mode}_function",)),
        )
    )


def _slots() -> tuple[Seam, ...]:
    """The attributes of optimizers that contain the variables that a training kernel updates."""
    names = {
        "SGD": ("momentums",), "Adam": ("_momentums", "_velocities", "_velocity_hats"), "Adamax": ("_m", "_u"),
        "Adadelta": ("_accumulated_grads", "_accumulated_delta_vars"),
        "RMSprop": ("_velocities", "_momentums", "_average_gradients"), "Ftrl": ("_accumulators", "_linears"),
    }
    return tuple(
        Seam(f"keras.optimizers.{kind}", name, FUSED, STORED, callers=("update_step",))
        for kind, slots in names.items() for name in slots
    )


TABLE: tuple[Seam, ...] = (
    *_loops(),
    Seam(_MODEL, "reset_metrics", FIRST_BATCHES, callers=("fit",)),
    Seam(_MODEL, "get_metrics_result", FIRST_BATCHES, callers=("_get_metrics_result_or_logs",)),
    Seam(
        _OPTIMIZER, "apply", "cutting a step at its gradients", parameters=("self", "grads", "trainable_variables"),
        callers=("apply_gradients",),
    ),
    Seam(_OPTIMIZER, "apply_gradients", "cutting a step at its gradients", callers=("keras.Model.train_step",)),
    Seam(
        _OPTIMIZER, "scale_loss", "weighting a replica's loss with its part of the batch", parameters=("self", "loss"),
        callers=("keras.Model.train_step",),
    ),
    Seam(_OPTIMIZER, "_trainable_variables", "naming the variable of each gradient", STORED),
    Seam(_OPTIMIZER, "_get_variable_index", FUSED, parameters=("self", "variable")),
    Seam(_OPTIMIZER, "update_step", FUSED, parameters=("self", "gradient", "variable", "learning_rate")),
    *_slots(),
    Seam(_MODEL, "_compile_loss", LOSSES, STORED, callers=("compute_loss",)),
    Seam(_MODEL, "_compile_metrics", RECOMPILED, STORED, callers=("compute_metrics",)),
    Seam(_MODEL, "_loss_tracker", RECOMPILED, STORED, callers=("train_step",)),
    Seam(_MODEL, "_aggregate_additional_loss", LOSSES, parameters=("self", "loss"), callers=("compute_loss",)),
    Seam(_COMPILE_LOSS, "_flat_losses", LOSSES, STORED, callers=("call",)),
    Seam(
        "keras", "CompileLoss.Loss is a named tuple with a field loss", LOSSES, BEHAVIOUR,
        probe=_losses_are_named_tuples,
    ),
    Seam(_LOSS, "call", LOSSES, parameters=("self", "y_true", "y_pred"), callers=("__call__",)),
    Seam(_LOSS, "reduction", LOSSES, STORED, callers=("__call__",)),
    Seam("keras.Variable", "_initialize", VALUELESS),
    Seam("keras.Variable", "_initializer", VALUELESS, STORED),
    GET_MASK,
    GLOBAL_ATTRIBUTE,
    SET_MASK,
    Seam(_COMPILE_METRICS, "metrics", METRICS),
    Seam(_COMPILE_METRICS, "_user_metrics", AHEAD, STORED),
    Seam(_COMPILE_METRICS, "_user_weighted_metrics", AHEAD, STORED),
    Seam("keras.metrics.Mean", "update_state", METRICS, parameters=("self", "values", "sample_weight")),
    Seam("keras.metrics.Sum", "update_state", METRICS, parameters=("self", "values", "sample_weight")),
    Seam(_MEAN_OF_FUNCTION, "update_state", METRICS, parameters=("self", "y_true", "y_pred", "sample_weight")),
    Seam(_MEAN_OF_FUNCTION, "_fn", METRICS, STORED, callers=("update_state",)),
    Seam(_MEAN_OF_FUNCTION, "_fn_kwargs", METRICS, STORED, callers=("update_state",)),
    Seam(
        "keras", "the variables of a metric are added up over replicas unless it says otherwise", METRICS, BEHAVIOUR,
        probe=_metrics_are_added_up,
    ),
    Seam(_NORM, "_moments", SYNCHRONIZED, parameters=("self", "inputs", "mask"), callers=("call",)),
    Seam(_NORM, "_reduction_axes", SYNCHRONIZED, STORED),
    Seam(_NORM, "call", SYNCHRONIZED, parameters=("self", "inputs", "training", "mask")),
    Seam(
        _LAYER, "_flatten_layers", "finding the layers and optimizers of a model",
        parameters=("self", "include_self", "recursive"),
    ),
    Seam(_LAYER, "_seed_generators", "the plan's note on random numbers", STORED),
    Seam("keras.Sequential", "_functional", AHEAD, STORED),
    Seam(
        "keras", "models of Keras's own are classes in modules below keras", AHEAD, BEHAVIOUR,
        probe=_models_are_in_keras,
    ),
    Seam("keras.Variable", "_value", "showing callbacks the trained weights", STORED, callers=("value",)),
    Seam(
        "keras", "keras.ops.take makes negative indices count from the end by SelectV2, Less and AddV2",
        "adding up the rows of embeddings", BEHAVIOUR, probe=_take_counts_from_the_end,
    ),
    Seam(
        "keras.random.SeedGenerator", "seed_generator_state", "giving each replica random numbers of its own", TEXT,
        callers=("__init__",),
    ),
    Seam(
        "tensorflow.random.Generator", "StateVar", "giving each replica random numbers of its own", TEXT,
        callers=("_create_variable",),
    ),
    Seam(_MODEL, "_maybe_symbolic_build", RESUME, parameters=("self", "iterator", "data_batch"), callers=("fit",)),
    Seam(_MODEL, "_initial_epoch", RESUME, STORED, callers=("fit",)),
    Seam(_EPOCH, "_enumerate_iterator", RESUME, parameters=("self",), callers=("__iter__",)),
    Seam(_EPOCH, "_get_iterator", RESUME, parameters=("self",), callers=("_enumerate_iterator",)),
    Seam(_EPOCH, "_steps_seen", RESUME, STORED, callers=("_enumerate_iterator",)),
    Seam(_EPOCH, "_current_iterator", RESUME, STORED, callers=("_enumerate_iterator",)),
    Seam(_EPOCH, "_num_batches", RESUME, STORED, callers=("_enumerate_iterator",)),
    Seam(_TF_EPOCH, "_distributed_dataset", KEPT, STORED, callers=("_get_iterator",)),
    Seam(_MODEL, "_eval_epoch_iterator", KEPT, STORED, callers=("fit",)),
    Seam(_ARRAYS, "_inputs", KEPT, STORED, callers=("get_tf_dataset",)),
    Seam("keras.src.trainers.data_adapters.tf_dataset_adapter", "TFDatasetAdapter", KEPT),
    EPOCH_ITERATOR,
    Seam(
        "keras", "a loop takes the data from an adapter of Keras's that is passed as x", KEPT, BEHAVIOUR,
        probe=_adapters_are_taken,
    ),
    LOOP_ASKS, LOOP_ITERATES, STEP_APPLIES, STEP_SCALES, LOSSES_ARE_ASKED, LOSS_CALLS, METRIC_CALLS, NORM_ASKS,
    ADDED_UP, FORMULAS,
)
