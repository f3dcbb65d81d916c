"""The seams into Keras: the names and behaviours of Keras that are not public API and that the project uses.

In: the installed Keras. Out: nothing, or a SeamError that lists the missing names. `autodist_core.seams` says what a
seam is, and has the seams into TensorFlow. `check()` examines both tables when the first model is wrapped. Only a real
step shows some behaviours; the code that relies on one of these checks it there (`AT_USE`).

>>> next(seam.label for seam in TABLE if seam.rests == SYNCHRONIZED)
'BatchNormalization._moments'
"""

from __future__ import annotations

import inspect
from functools import cache

import keras
import numpy as np
import tensorflow as tf

from autodist_core.errors import SeamError
from autodist_core.seams.seam import AT_USE, BEHAVIOUR, STORED, TEXT, Seam, mention_versions, owner, problems
from autodist_core.seams.table import TABLE as CORE


@cache
def check() -> None:
    """Raise a SeamError that lists what is missing in Keras and TensorFlow. After a pass, further calls cost nothing.

    >>> check()
    """
    if found := problems((*TABLE, *CORE)):
        raise SeamError(*found)
    mention_versions("keras", "tensorflow")


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

_PLAIN = "Keras would train on one device, without a word"
_WRONG_LOSS = "a masked, weighted or summed loss would count wrongly on uneven replicas"
_WRONG_METRIC = "metrics of uneven replicas would count wrongly"
_WRONG_UPDATE = "updates in training kernels would be wrong"
_SLOW = "captures would take longer"
_FED = "arrays would be fed in every epoch, or not in Keras's order"
_FROM_THE_START = "a training that is resumed would run the whole epoch again"
_OTHER_DRAWS = "a validation and callbacks that draw with keras.random would draw others after a failure"
_OUTDATED = "a model that is compiled again would go on with the old step"

LOSSES = "the correction of losses that are no means over examples"
METRICS = "the correction of metrics on uneven replicas"
FUSED = "the update in TensorFlow's training kernels"
SYNCHRONIZED = "synchronized batch normalization"
AHEAD = "making a step's variables before it is traced"
RECOMPILED = "seeing that a model was compiled again"
FIRST_BATCHES = "reading the first batches of data for plan and verify"
KEPT = "sending arrays and datasets of a loop once to each machine"
RESUME = "going on in the middle of an epoch"
LOOPS = "running distributed steps in Keras's own loops"

GET_MASK = Seam("keras.src.backend.common.masking", "get_keras_mask", LOSSES, _WRONG_LOSS)
SET_MASK = Seam("keras.src.backend.common.masking", "set_keras_mask", LOSSES, _WRONG_LOSS)
GLOBAL_ATTRIBUTE = Seam(
    "keras.src.backend.common.global_state", "get_global_attribute", RESUME, _OTHER_DRAWS,
    callers=("keras.src.random.seed_generator.global_seed_generator",),
)
EPOCH_ITERATOR = Seam(
    "keras.src.backend.tensorflow.trainer", "TFEpochIterator", KEPT, "the data of predict would be fed"
)

# Checked by the code that relies on them.
LOOP_ASKS = Seam(
    "keras", "fit, evaluate and predict ask make_train_function and its siblings for what they call", LOOPS, _PLAIN,
    AT_USE,
)
LOOP_ITERATES = Seam(
    "keras", "train and test functions are called with an iterator", LOOPS, "batches would be read wrongly", AT_USE
)
STEP_APPLIES = Seam(
    "keras", "the train step calls its optimizer's apply", "cutting a step at its gradients",
    "each replica would update its weights with its own gradients", AT_USE,
)
STEP_SCALES = Seam(
    "keras", "the train step passes its loss to its optimizer's scale_loss",
    "weighting a replica's loss with its part of the batch", "corrected losses would count wrongly", AT_USE,
)
LOSSES_ARE_ASKED = Seam(
    "keras", "CompileLoss calls the losses in _flat_losses", LOSSES, _WRONG_LOSS, AT_USE
)
LOSS_CALLS = Seam("keras", "Loss.__call__ calls call", LOSSES, _WRONG_LOSS, AT_USE)
METRIC_CALLS = Seam("keras", "MeanMetricWrapper.update_state calls _fn", METRICS, _WRONG_METRIC, AT_USE)
NORM_ASKS = Seam(
    "keras", "BatchNormalization.call asks _moments in training", SYNCHRONIZED,
    "each replica would normalize by its own statistics", AT_USE,
)
ADDED_UP = Seam(
    "keras", "the variables of a Mean or Sum metric are added up over replicas", METRICS, _WRONG_METRIC, AT_USE
)
FORMULAS = Seam(
    "keras", "an optimizer's formula is that of TensorFlow's training kernel", FUSED, _WRONG_UPDATE, AT_USE
)


def _loops() -> tuple[Seam, ...]:
    """The names that Keras's loops use in each mode."""
    modes = {
        "train": ("fit", "train_on_batch"), "test": ("evaluate", "test_on_batch"),
        "predict": ("predict", "predict_on_batch"),
    }
    return tuple(
        seam for mode, loops in modes.items() for seam in (
            Seam(_MODEL, f"make_{mode}_function", LOOPS, _PLAIN, parameters=("self", "force"), callers=loops),
            Seam(_MODEL, f"{mode}_function", LOOPS, _PLAIN, STORED, callers=loops),
            Seam(_MODEL, f"{mode}_step", LOOPS, "another step would be captured than the one that Keras runs",
                 callers=(f"make_{mode}_function",)),
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
        Seam(f"keras.optimizers.{kind}", name, FUSED, _WRONG_UPDATE, STORED, callers=("update_step",))
        for kind, slots in names.items() for name in slots
    )


TABLE: tuple[Seam, ...] = (
    *_loops(),
    Seam(_MODEL, "reset_metrics", FIRST_BATCHES, "plan would reset the metrics of the model", callers=("fit",)),
    Seam(_MODEL, "get_metrics_result", FIRST_BATCHES, "plan would ask for batches for ever",
         callers=("_get_metrics_result_or_logs",)),
    Seam(
        _OPTIMIZER, "apply", "cutting a step at its gradients", "each replica would update its weights by itself",
        parameters=("self", "grads", "trainable_variables"), callers=("apply_gradients",),
    ),
    Seam(
        _OPTIMIZER, "apply_gradients", "cutting a step at its gradients",
        "each replica would update its weights by itself", callers=("keras.Model.train_step",),
    ),
    Seam(
        _OPTIMIZER, "scale_loss", "weighting a replica's loss with its part of the batch",
        "corrected losses would count wrongly", parameters=("self", "loss"), callers=("keras.Model.train_step",),
    ),
    Seam(
        _OPTIMIZER, "_trainable_variables", "naming the variable of each gradient",
        "a custom step could not be captured", STORED,
    ),
    Seam(_OPTIMIZER, "_get_variable_index", FUSED, _WRONG_UPDATE, parameters=("self", "variable")),
    Seam(
        _OPTIMIZER, "update_step", FUSED, "the plan would name kernels that do not run",
        parameters=("self", "gradient", "variable", "learning_rate"),
    ),
    *_slots(),
    Seam(_MODEL, "_compile_loss", LOSSES, _WRONG_LOSS, STORED, callers=("compute_loss",)),
    Seam(_MODEL, "_compile_metrics", RECOMPILED, _OUTDATED, STORED, callers=("compute_metrics",)),
    Seam(_MODEL, "_loss_tracker", RECOMPILED, _OUTDATED, STORED, callers=("train_step",)),
    Seam(
        _MODEL, "_aggregate_additional_loss", LOSSES,
        "add_loss terms with a value for each example would count wrongly",
        parameters=("self", "loss"), callers=("compute_loss",),
    ),
    Seam(_COMPILE_LOSS, "_flat_losses", LOSSES, _WRONG_LOSS, STORED, callers=("call",)),
    Seam(
        "keras", "CompileLoss.Loss is a named tuple with a field loss", LOSSES, _WRONG_LOSS, BEHAVIOUR,
        probe=_losses_are_named_tuples,
    ),
    Seam(_LOSS, "call", LOSSES, _WRONG_LOSS, parameters=("self", "y_true", "y_pred"), callers=("__call__",)),
    Seam(_LOSS, "reduction", LOSSES, _WRONG_LOSS, STORED, callers=("__call__",)),
    GET_MASK,
    GLOBAL_ATTRIBUTE,
    SET_MASK,
    Seam(_COMPILE_METRICS, "metrics", METRICS, _WRONG_METRIC),
    Seam(_COMPILE_METRICS, "_user_metrics", AHEAD, _SLOW, STORED),
    Seam(_COMPILE_METRICS, "_user_weighted_metrics", AHEAD, _SLOW, STORED),
    Seam("keras.metrics.Mean", "update_state", METRICS, _WRONG_METRIC, parameters=("self", "values", "sample_weight")),
    Seam("keras.metrics.Sum", "update_state", METRICS, _WRONG_METRIC, parameters=("self", "values", "sample_weight")),
    Seam(
        _MEAN_OF_FUNCTION, "update_state", METRICS, _WRONG_METRIC,
        parameters=("self", "y_true", "y_pred", "sample_weight"),
    ),
    Seam(_MEAN_OF_FUNCTION, "_fn", METRICS, _WRONG_METRIC, STORED, callers=("update_state",)),
    Seam(_MEAN_OF_FUNCTION, "_fn_kwargs", METRICS, _WRONG_METRIC, STORED, callers=("update_state",)),
    Seam(
        "keras", "the variables of a metric are added up over replicas unless it says otherwise", METRICS,
        _WRONG_METRIC, BEHAVIOUR, probe=_metrics_are_added_up,
    ),
    Seam(
        _NORM, "_moments", SYNCHRONIZED, "each replica would normalize by its own statistics",
        parameters=("self", "inputs", "mask"), callers=("call",),
    ),
    Seam(_NORM, "_reduction_axes", SYNCHRONIZED, "statistics would be taken over other axes", STORED),
    Seam(
        _NORM, "call", SYNCHRONIZED, "nobody would see whether the statistics are asked for",
        parameters=("self", "inputs", "training", "mask"),
    ),
    Seam(
        _LAYER, "_flatten_layers", "finding the layers and optimizers of a model", "optimizers would not be found",
        parameters=("self", "include_self", "recursive"),
    ),
    Seam(_LAYER, "_seed_generators", "the plan's note on random numbers", "the note would be missing", STORED),
    Seam("keras.Sequential", "_functional", AHEAD, _SLOW, STORED),
    Seam(
        "keras", "models of Keras's own are classes in modules below keras", AHEAD, _SLOW, BEHAVIOUR,
        probe=_models_are_in_keras,
    ),
    Seam(
        "keras.Variable", "_value", "showing callbacks the trained weights",
        "callbacks would see and save stale weights", STORED, callers=("value",),
    ),
    Seam(
        "keras", "keras.ops.take makes negative indices count from the end by SelectV2, Less and AddV2",
        "adding up the rows of embeddings", "rows that a step looks up once each would be added up several times",
        BEHAVIOUR, probe=_take_counts_from_the_end,
    ),
    Seam(
        "keras.random.SeedGenerator", "seed_generator_state", "giving each replica random numbers of its own",
        "replicas would draw the same numbers", TEXT, callers=("__init__",),
    ),
    Seam(
        "tensorflow.random.Generator", "StateVar", "giving each replica random numbers of its own",
        "replicas would draw the same numbers", TEXT, callers=("_create_variable",),
    ),
    Seam(
        _MODEL, "_maybe_symbolic_build", RESUME, _FROM_THE_START, parameters=("self", "iterator", "data_batch"),
        callers=("fit",),
    ),
    Seam(_MODEL, "_initial_epoch", RESUME, "a training that is resumed would begin with its first epoch", STORED,
         callers=("fit",)),
    Seam(_EPOCH, "_enumerate_iterator", RESUME, _FROM_THE_START, parameters=("self",), callers=("__iter__",)),
    Seam(_EPOCH, "_get_iterator", RESUME, "the data of earlier epochs would not be skipped", parameters=("self",),
         callers=("_enumerate_iterator",)),
    Seam(_EPOCH, "_steps_seen", RESUME, "data that lasts for several epochs would end at another step", STORED,
         callers=("_enumerate_iterator",)),
    Seam(_EPOCH, "_current_iterator", RESUME, "a longer training would begin with the data of its first epoch", STORED,
         callers=("_enumerate_iterator",)),
    Seam(_EPOCH, "_num_batches", RESUME, "Keras would warn again where data without a known length ends", STORED,
         callers=("_enumerate_iterator",)),
    Seam(_TF_EPOCH, "_distributed_dataset", KEPT, _FED, STORED, callers=("_get_iterator",)),
    Seam(_MODEL, "_eval_epoch_iterator", KEPT, "the arrays of a validation would be fed in every pass", STORED,
         callers=("fit",)),
    Seam(_ARRAYS, "_inputs", KEPT, _FED, STORED, callers=("get_tf_dataset",)),
    Seam("keras.src.trainers.data_adapters.tf_dataset_adapter", "TFDatasetAdapter", KEPT, "datasets would be fed"),
    EPOCH_ITERATOR,
    Seam(
        "keras", "a loop takes the data from an adapter of Keras's that is passed as x", KEPT,
        "predict would refuse its data", BEHAVIOUR, probe=_adapters_are_taken,
    ),
    LOOP_ASKS, LOOP_ITERATES, STEP_APPLIES, STEP_SCALES, LOSSES_ARE_ASKED, LOSS_CALLS, METRIC_CALLS, NORM_ASKS,
    ADDED_UP, FORMULAS,
)
