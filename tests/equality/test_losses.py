"""Terms of the loss that are no mean over examples or that the model adds itself, and predictions of rank one."""

from collections.abc import Callable
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.support.compare import TOLERANCE, assert_equally_trained
from tests.support.layers import Adds
from tests.support.models import BATCH, DENSE, EXAMPLES, Data, ReferenceModel, dense_data, dense_model
from tests.support.steps import OwnLoss, OwnStep
from tests.support.training import assert_equal_training, fit, train_distributed, train_plain


def _adds_mean() -> layers.Layer:
    """A scalar: a mean over examples."""
    return Adds(lambda x: 0.3 * ops.mean(ops.square(x)))


def _adds_vector() -> layers.Layer:
    """One term an example; Keras sums them."""
    return Adds(lambda x: 0.05 * ops.sum(ops.square(x), axis=-1))


class SumsByHand(keras.Sequential):
    """A loss of its own: a sum over the examples, Keras's loss, a penalty of the weights, and one by the batch size."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        losses, penalty = ops.square(y_pred - y), ops.mean(ops.square(self.layers[0].kernel))
        by_size = penalty / ops.cast(ops.shape(y)[0], penalty.dtype)
        return super().compute_loss(x, y, y_pred, sample_weight) + (ops.sum(losses) + penalty - by_size) / 5


class ScalesByHand(OwnLoss, SumsByHand):
    """A step of its own, with the loss through the optimizer's `scale_loss`."""

    def own_loss(self, x, y):
        return self.optimizer.scale_loss(self.compute_loss(x, y, self(x, training=True)))

    def returned(self, x, loss):
        return self.get_metrics_result()


def _summed(y_true, y_pred):
    far, weights = ops.abs(y_true - y_pred), ops.abs(y_true)
    return ops.sum(ops.square(far)) / 7 + ops.mean(ops.abs(y_pred)) + ops.sum(far * weights) / ops.sum(weights)


def _shared() -> keras.Model:
    """A layer, called twice, that adds a sum over the examples as one number, beside a mean, and one a feature."""
    adds = Adds(
        lambda x: 0.01 * ops.sum(ops.square(x)) - 0.3 * ops.mean(x), lambda x: 0.02 * ops.sum(ops.abs(x)),
        lambda x: 0.01 * ops.sum(ops.square(x), axis=0),
    )
    x = keras.Input((5,), name="x")
    hidden = adds(layers.Dense(6, activation="tanh", kernel_regularizer="l2", name="first")(x))
    return keras.Model(x, layers.Dense(1, name="out")(adds(layers.Dense(4, name="second")(hidden))), name="shared")


def _with(layer: Callable[[], layers.Layer] | None = None, **settings) -> keras.Model:
    """A small network with a layer in its middle, and settings of the layer before."""
    middle = [layer()] if layer else []
    return keras.Sequential(
        [
            keras.Input((5,), name="x"),
            layers.Dense(6, activation="tanh", name="first", **settings),
            *middle,
            layers.Dense(1, name="out"),
        ],
        name="small",
    )


def _weighted() -> Data:
    data = dense_data()
    return Data(data.x, data.y, np.linspace(0.0, 3.0, EXAMPLES) ** 2)


def _masked_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((5,), dtype="int32", name="ids"),
            layers.Embedding(9, 4, mask_zero=True, name="table"),
            layers.LSTM(4, return_sequences=True, name="lstm"),
            layers.Dense(2, name="out"),
        ],
        name="masked",
    )


def _masked_data() -> Data:
    """Sequences of very different lengths, padded with zeros at the end; replicas see different numbers of steps."""
    random = np.random.default_rng(5)
    ids = random.integers(1, 9, (EXAMPLES, 5))
    lengths = np.where(np.arange(EXAMPLES) % 7 < 4, 1, 5)
    ids[np.arange(5)[None, :] >= lengths[:, None]] = 0
    return Data(ids.astype("int32"), random.normal(size=(EXAMPLES, 5, 2)))


def _of_rank_one() -> keras.Model:
    model = dense_model()
    return keras.Sequential([*model.layers, layers.Reshape((), name="flat")], name="rank_one")


def _weighted_of_rank_one() -> Data:
    """The first batch's first examples weigh nothing, so that a replica has none that count."""
    given = _weighted()
    return Data(given.x, given.y[:, 0], np.where(np.arange(EXAMPLES) < 3, 0.0, given.sample_weight))


def _ignoring_model() -> keras.Model:
    return keras.Sequential([keras.Input((4, 3), name="x"), layers.Dense(3, name="out")], name="ignoring")


def _ignoring_data() -> Data:
    random = np.random.default_rng(6)
    y = random.integers(0, 3, (EXAMPLES, 4))
    y[np.arange(EXAMPLES) % 7 < 3, 1:] = -1
    return Data(random.normal(size=(EXAMPLES, 4, 3)), y)


def _one(name: str, build, data, **settings) -> ReferenceModel:
    return ReferenceModel(name, build, data, lambda: {key: make() for key, make in settings.items()})


def _mse(**arguments) -> Callable[[], keras.losses.Loss]:
    return lambda: keras.losses.MeanSquaredError(**arguments)


def _ignore_class() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)


CASES = (
    _one("kernel_regularizer", lambda: _with(kernel_regularizer=keras.regularizers.L2(0.1)), dense_data, loss=_mse()),
    _one("activity_regularizer", lambda: _with(activity_regularizer=keras.regularizers.L1(0.1)), dense_data,
         loss=_mse()),
    _one("both_regularizers_of_a_weighted_loss",
         lambda: _with(kernel_regularizer=keras.regularizers.L1L2(0.05, 0.1),
                       activity_regularizer=keras.regularizers.L2(0.1)), _weighted, loss=_mse()),
    _one("added_mean", lambda: _with(_adds_mean), dense_data, loss=_mse()),
    _one("added_vector", lambda: _with(_adds_vector), dense_data, loss=_mse()),
    _one("added_vector_and_regularizer",
         lambda: _with(_adds_vector, kernel_regularizer=keras.regularizers.L2(0.1)), dense_data, loss=_mse()),
    _one("sum", dense_model, dense_data, loss=_mse(reduction="sum")),
    _one("sum_of_weighted", dense_model, _weighted, loss=_mse(reduction="sum")),
    _one("sum_with_regularizer", lambda: _with(kernel_regularizer=keras.regularizers.L2(0.1)), dense_data,
         loss=_mse(reduction="sum")),
    _one("mean_with_sample_weight", dense_model, _weighted, loss=_mse(reduction="mean_with_sample_weight")),
    _one("masked", _masked_model, _masked_data, loss=_mse()),
    _one("masked_sum", _masked_model, _masked_data, loss=_mse(reduction="sum")),
    _one("masked_mean_with_sample_weight", _masked_model, _masked_data,
         loss=_mse(reduction="mean_with_sample_weight")),
    _one("unreduced", dense_model, dense_data, loss=_mse(reduction=None)),
    _one("unreduced_weighted", dense_model, _weighted, loss=_mse(reduction="none")),
    _one("unreduced_of_one_value_a_batch", _of_rank_one, _weighted_of_rank_one, loss=_mse(reduction=None)),
    _one("masked_unreduced", _masked_model, _masked_data, loss=_mse(reduction=None)),
    _one("ignored_class", _ignoring_model, _ignoring_data, loss=_ignore_class),
    _one("sum_of_a_function", dense_model, dense_data, loss=lambda: _summed),
    _one("sum_of_a_function_weighted", dense_model, _weighted, loss=lambda: _summed),
    _one("sums_added", _shared, dense_data, loss=_mse()),
    *(
        _one(f"sum_of_{kind.__name__}", lambda kind=kind: kind(dense_model().layers, name="by_hand"), dense_data,
             loss=_mse())
        for kind in (SumsByHand, ScalesByHand)
    ),
)  # fmt: skip


_PICKED = ("added_vector", "sum_with_regularizer", "masked", "unreduced", "unreduced_weighted", "ignored_class")
ON_PS = [case for case in CASES if case.name in _PICKED]


@pytest.mark.quick(
    "both_regularizers_of_a_weighted_loss-AllReduce-3", "sum_of_a_function-AllReduce-3",
    "sum_of_a_function_weighted-AllReduce-3",
    "sum_of_ScalesByHand-AllReduce-3", "unreduced_weighted-PS-2",
)  # fmt: skip
@pytest.mark.parametrize(
    "case, builder, replicas",
    [(case, "AllReduce", 3) for case in CASES] + [(case, "PS", 2) for case in ON_PS],
    ids=str,
)
def test_loss_terms(case: ReferenceModel, builder: str, replicas: int):
    optimizer = "adam" if "sum" in case.name or "unreduced" in case.name else "sgd"
    assert_equal_training(case, optimizer=optimizer, strategy=builder, replicas=replicas)


@pytest.mark.quick("unreduced_and_sum")
@pytest.mark.parametrize("losses", [
    lambda: [_mse(reduction="sum")(), _mse(reduction="mean_with_sample_weight")()],
    lambda: [_mse(reduction=None)(), _mse(reduction="mean_with_sample_weight")()],
    lambda: [_mse(reduction=None)(), _mse(reduction="sum")()],
    lambda: [_summed, _mse(reduction="mean_with_sample_weight")()],
], ids=["sum", "unreduced", "unreduced_and_sum", "sum_of_a_function"])  # fmt: skip
def test_a_loss_for_each_output_is_corrected_by_itself(losses):
    def build():
        x = keras.Input((5,), name="x")
        hidden = layers.Dense(4, activation="tanh", name="first")(x)
        return keras.Model(x, [layers.Dense(1, name="a")(hidden), layers.Dense(1, name="b")(hidden)], name="two")

    def data():
        both = _weighted()
        return Data(both.x, [both.y, both.y**2], [both.sample_weight, both.sample_weight[::-1]])

    case = _one(
        "two", build, data, loss=losses, loss_weights=lambda: [0.1, 2.0],
        optimizer=lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.001), initial_scale=8.0),
    )
    assert_equal_training(case, replicas=3)


class ReducesByHand(OwnLoss, keras.Sequential):
    """A step that takes the compiled loss of each example and makes a mean of them."""

    def own_loss(self, x, y):
        return ops.mean(self.compute_loss(x, y, self(x, training=True)))

    def returned(self, x, loss):
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        return self.get_metrics_result()


def test_a_mean_by_hand_of_unreduced_losses_is_a_mean():
    case = _one("by_hand", lambda: ReducesByHand(dense_model().layers, name="by_hand"), dense_data,
                loss=_mse(reduction=None))  # fmt: skip
    assert_equal_training(case, replicas=3)


def _model() -> keras.Model:
    inputs = keras.Input((dense_data().x.shape[1],))
    outputs = keras.layers.Reshape(())(keras.layers.Dense(1, name="out")(inputs))
    return keras.Model(inputs, outputs, name="flat")


def _small_steps(build: Callable[[], keras.Model], settings: Callable[[], dict]) -> ReferenceModel:
    def compiled_with() -> dict:
        return {"optimizer": keras.optimizers.SGD(0.01, name="sgd"), "loss": "mse", **settings()}

    return ReferenceModel("small_steps", build, dense_data, compiled_with)


@pytest.mark.quick("sum_over_batch_size-spread", "mean_with_sample_weight-spread")
@pytest.mark.parametrize("weights", ["spread", "zeros_in_front"])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
def test_sample_weights(reduction: str, weights: str):
    given = dense_data()
    sample_weight = np.linspace(0.5, 2.0, len(given.x))
    if weights == "zeros_in_front":
        sample_weight[:4] = 0.0
    data = Data(given.x, given.y[:, 0], sample_weight)
    reference = _small_steps(_model, lambda: {"loss": keras.losses.MeanSquaredError(reduction=reduction)})
    expected = train_plain(reference, data=data)
    for replicas, tolerance in ((1, 0.0), (3, TOLERANCE)):
        assert_equally_trained(expected, train_distributed(reference, replicas=replicas, data=data), tolerance)


def _gap(y_true, y_pred):
    """A metric function that reduces its batch by itself, of whatever shape it is."""
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


METRICS = {"flat": (_model, lambda: ["mae", "mse"]), "by_hand": (DENSE.build, lambda: [_gap])}
"""Functions that make one number of a batch: because predictions have no last axis, or by themselves."""


@pytest.mark.quick("flat-plain", "by_hand-sample_weight")
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "sample_weight"])
@pytest.mark.parametrize("case", METRICS)
def test_metrics_that_are_one_number_for_a_batch(case: str, weighted: bool):
    build, metrics = METRICS[case]
    given = dense_data()
    data = Data(given.x, given.y if case == "by_hand" else given.y[:, 0], np.linspace(0.2, 2.0, len(given.x)))
    weights = data.sample_weight if weighted else None
    reference = _small_steps(build, lambda: {"metrics": metrics()})

    def program(front, model):
        history = fit(front, replace(data, sample_weight=weights), validation_data=(data.x[:9], data.y[:9]))
        evaluated = front.evaluate(data.x, data.y, sample_weight=weights, batch_size=BATCH, verbose=0, return_dict=True)
        return {"history": history, "evaluated": evaluated}

    expected = train_plain(reference, program)
    assert len(expected.result) == 3 * (1 + len(metrics()))
    for replicas, tolerance in ((1, 0.0), (3, TOLERANCE)):
        assert_equally_trained(expected, train_distributed(reference, program, replicas=replicas), tolerance)


@pytest.mark.parametrize("train", [train_plain, train_distributed])
def test_weighted_metrics_of_one_number_fail_as_in_keras(train: Callable):
    """Weights of examples have nothing to weigh in a number for the whole batch."""
    given = dense_data()
    data = Data(given.x, given.y[:, 0], np.linspace(0.2, 2.0, len(given.x)))
    reference = _small_steps(_model, lambda: {"weighted_metrics": ["mae"]})
    with pytest.raises(ValueError, match="at most rank 0 but is rank 1"):
        train(reference, lambda front, model: fit(front, data))


class OwnLoop(OwnStep):
    """Updates its compiled metrics itself, as Keras's guides show."""

    def __init__(self):
        super().__init__(name="own_loop")
        self.gap = keras.metrics.MeanMetricWrapper(_gap, name="gap")

    def train_step(self, data):
        logs = super().train_step(data)
        self.gap.update_state(data[1], self(data[0]))
        return {**logs, "gap": self.gap.result()}

    @property
    def metrics(self):
        return [*super().metrics, self.gap]


def test_a_metric_function_in_a_custom_step():
    reference = ReferenceModel("own_loop", OwnLoop, dense_data, dict)
    assert "gap" in assert_equal_training(reference, optimizer="sgd", replicas=3).result
