"""The seams into Keras: the names and behaviours of Keras that are not public API and that the project uses.

In: the installed Keras. Out: nothing, or a SeamError that lists the missing names. `autodist_core.seams` says what a
seam is, and has the seams into TensorFlow. `check()` examines both tables when the first model is wrapped. Only a real
step shows some behaviours; the code that relies on one of these checks it there (`at_use`).

>>> next(seam.label for seam in TABLE if seam.rests == SYNCHRONIZED)
'BatchNormalization._moments'
"""

from functools import cache

from autodist_core.seams.seam import Seam, examine
from autodist_core.seams.table import TABLE as CORE


@cache
def check() -> None:
    """Raise a SeamError that lists what is missing in Keras and TensorFlow. After a pass, further calls cost nothing.

    >>> check()
    """
    examine((*TABLE, *CORE), "keras", "tensorflow")


_MODEL = "keras.Model"
_OPTIMIZER = "keras.optimizers.Optimizer"
_LOSS = "keras.losses.Loss"
_NORM = "keras.layers.BatchNormalization"
_EPOCH = "keras.src.trainers.epoch_iterator.EpochIterator"

CUT = "cutting a step at its gradients"
WEIGHTED = "weighting a replica's loss with its part of the batch"
LOSSES = "the correction of losses that are no means over examples"
METRICS = "the correction of metrics on uneven replicas"
FUSED = "the update in TensorFlow's training kernels"
SYNCHRONIZED = "synchronized batch normalization"
VALUELESS = "models whose variables have no values"
FIRST_BATCHES = "reading the first batches of data for plan and verify"
KEPT = "sending arrays and datasets of a loop once to each machine"
RESUME = "going on in the middle of an epoch"
LOOPS = "running distributed steps in Keras's own loops"

GET_MASK = Seam("keras.src.backend.common.masking", "get_keras_mask", LOSSES)
SET_MASK = Seam("keras.src.backend.common.masking", "set_keras_mask", LOSSES)
GLOBAL_ATTRIBUTE = Seam("keras.src.backend.common.global_state", "get_global_attribute", RESUME)
H5_STORE = Seam("keras.src.saving.saving_lib", "H5IOStore", "loading values that are larger than the memory")
EPOCH_ITERATOR = Seam("keras.src.backend.tensorflow.trainer", "TFEpochIterator", KEPT)

# Checked by the code that relies on them.
LOOP_ASKS = Seam(
    "keras", "fit, evaluate and predict ask make_train_function and its siblings for what they call", LOOPS,
    at_use=True,
)
LOOP_ITERATES = Seam("keras", "train and test functions are called with an iterator", LOOPS, at_use=True)
STEP_APPLIES = Seam("keras", "the train step calls its optimizer's apply", CUT, at_use=True)
STEP_SCALES = Seam("keras", "the train step passes its loss to its optimizer's scale_loss", WEIGHTED, at_use=True)
LOSSES_ARE_ASKED = Seam("keras", "CompileLoss calls the losses in _flat_losses", LOSSES, at_use=True)
LOSS_CALLS = Seam("keras", "Loss.__call__ calls call", LOSSES, at_use=True)
METRIC_CALLS = Seam("keras", "MeanMetricWrapper.update_state calls _fn", METRICS, at_use=True)
NORM_ASKS = Seam("keras", "BatchNormalization.call asks _moments in training", SYNCHRONIZED, at_use=True)
ADDED_UP = Seam("keras", "the variables of a Mean or Sum metric are added up over replicas", METRICS, at_use=True)
FORMULAS = Seam("keras", "an optimizer's formula is that of TensorFlow's training kernel", FUSED, at_use=True)

TABLE: tuple[Seam, ...] = (
    *(Seam(_MODEL, f"make_{mode}_function", LOOPS) for mode in ("train", "test", "predict")),
    *(Seam(_MODEL, f"{mode}_step", LOOPS) for mode in ("train", "test", "predict")),
    Seam(_MODEL, "reset_metrics", FIRST_BATCHES),
    Seam(_MODEL, "get_metrics_result", FIRST_BATCHES),
    Seam(_OPTIMIZER, "apply", CUT),
    Seam(_OPTIMIZER, "apply_gradients", CUT),
    Seam(_OPTIMIZER, "scale_loss", WEIGHTED),
    Seam(_OPTIMIZER, "_get_variable_index", FUSED),
    Seam(_OPTIMIZER, "update_step", FUSED),
    Seam(_MODEL, "_aggregate_additional_loss", LOSSES),
    Seam(_LOSS, "call", LOSSES),
    Seam("keras.Variable", "_initialize", VALUELESS),
    Seam("keras.src.trainers.compile_utils.CompileMetrics", "metrics", METRICS),
    Seam("keras.metrics.Mean", "update_state", METRICS),
    Seam("keras.metrics.Sum", "update_state", METRICS),
    Seam("keras.metrics.MeanMetricWrapper", "update_state", METRICS),
    Seam(_NORM, "_moments", SYNCHRONIZED),
    Seam(_NORM, "call", SYNCHRONIZED),
    Seam("keras.layers.Layer", "_flatten_layers", "finding the layers and optimizers of a model"),
    Seam(_MODEL, "_maybe_symbolic_build", RESUME),
    Seam(_EPOCH, "_enumerate_iterator", RESUME),
    Seam(_EPOCH, "_get_iterator", RESUME),
    Seam("keras.src.trainers.data_adapters.tf_dataset_adapter", "TFDatasetAdapter", KEPT),
    *(each for each in tuple(globals().values()) if isinstance(each, Seam)),  # those above, for which code asks
)
"""What the installed Keras must have. `tests/seams/test_uses.py` has what Keras must do with it besides, and the
attributes that it gives to instances."""
