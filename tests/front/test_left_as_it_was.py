"""A call that is refused or interrupted leaves the model, the session and the settings as they were."""

import random
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError, StrategyError
from autodist_core.strategy import PS, AllReduce, StrategyBuilder
from tests.support.compare import assert_equally_trained, assert_same, named
from tests.support.models import DENSE, even_data
from tests.support.plans import without_memory
from tests.support.steps import OwnLoss
from tests.support.training import QUIET, compiled, distributed, fit, seeded, train_plain, trained


def _evaluate(front):
    data = even_data()
    return front.evaluate(data.x, data.y, verbose=0, return_dict=True)


class Refuses(AllReduce):
    """A strategy of one's own that does not like any model."""

    def build(self, graph_item, resource_spec):
        raise StrategyError("none for this model")


def test_a_refused_fit_leaves_the_session_of_an_evaluation():
    model, data = compiled(DENSE), even_data()
    with distributed(model, strategy=Refuses(), share_memory=True) as front:
        before, evaluated, predicted = named(model.weights), _evaluate(front), front.predict(data.x, verbose=0)
        for _ in range(2):
            with pytest.raises(StrategyError, match="none for this model"):
                fit(front)
            assert _evaluate(front) == evaluated
            np.testing.assert_array_equal(front.predict(data.x, verbose=0), predicted)
        assert_same(before, named(model.weights), tolerance=0.0)
        with pytest.raises(StrategyError, match="none for this model"):
            front.plan()
        front.strategy = "PS"
        assert "captures the step" in front.plan()
        actual = trained(model, [fit(front)])
    assert_equally_trained(train_plain(DENSE, lambda plain, _: [fit(plain)]), actual)


REFUSES = {
    "the strategy": (lambda front, data: front.fit(data.x, data.y, **QUIET), StrategyError),
    "targets": (lambda front, data: front.fit(data.x, np.ones((len(data.x), 3, 7)), **QUIET), ValueError),
    "a plan of targets": (lambda front, data: front.plan(data.x, np.ones((len(data.x), 3, 7))), ValueError),
}


def _frozen() -> keras.Model:
    model = seeded(DENSE.build)
    model.layers[0].trainable = False
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(use_ema=True))
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def test_a_refused_fit_leaves_the_optimizer_without_slots():
    """Layers that are trainable afterwards are trained: the optimizer has no slots of the others alone."""
    data, model, expected = even_data(), _frozen(), _frozen()
    optimizers = model.optimizer, model.optimizer.inner_optimizer
    before = [(len(each.variables), sorted(vars(each))) for each in optimizers]
    for case, (call, error) in REFUSES.items():
        refusing = Refuses() if case == "the strategy" else None
        with distributed(model, strategy=refusing, share_memory=True) as front:
            with pytest.raises(error):
                call(front, data)
            assert [(len(each.variables), sorted(vars(each))) for each in optimizers] == before, case
            assert not any(each.built for each in optimizers), case
    for each in (model, expected):
        each.layers[0].trainable = True
        each.fit(data.x, data.y, **QUIET)
    assert_same(named(expected.weights), named(model.weights), tolerance=0.0)


REFUSED = {
    "a strategy that is none": (lambda front: front.compile("sgd", "mse", strategy="PSS"), StrategyError),
    "metrics that are none": (lambda front: front.compile("sgd", "mse", metrics=3), ValueError),
    "a setting that is none": (lambda front: setattr(front, "share_memory", 3), StrategyError),
    "targets without inputs": (lambda front: front.evaluate(_uneven(), verbose=0), CaptureError),
    "targets without inputs in a fit": (lambda front: front.fit(_uneven(), shuffle=False, verbose=0), CaptureError),
    "inputs with another last axis": (lambda front: front.evaluate(np.zeros((4, 9)), np.zeros((4, 1)), verbose=0),
                                      ValueError),
}  # fmt: skip


def _uneven() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors((tf.zeros([2, 5], "float64"), tf.zeros([3, 1], "float64")))


def test_what_is_refused_between_two_fits_counts_for_nothing():
    model = compiled(DENSE)
    with distributed(model, strategy="PS") as front:
        results = [fit(front)]
        for case, (call, error) in REFUSED.items():
            with pytest.raises(error):
                call(front)
            assert type(front.strategy) is PS, case
            assert type(model.optimizer) is keras.optimizers.Adam, case
        results += [_evaluate(front), fit(front, batch_size=3)]
        actual = trained(model, results)
    expected = train_plain(DENSE, lambda plain, _: [fit(plain), _evaluate(plain), fit(plain, batch_size=3)])
    assert_equally_trained(expected, actual)


class Interrupted(PS):
    """During its first build, Ctrl-C is pressed."""

    presses = 1

    def build(self, graph_item, resource_spec):
        if self.presses:
            self.presses -= 1
            signal.raise_signal(signal.SIGINT)
        return super().build(graph_item, resource_spec)


def test_ctrl_c_while_a_training_is_built():
    model = compiled(DENSE)
    with distributed(model, strategy=Interrupted()) as front:
        with pytest.raises(KeyboardInterrupt):
            fit(front)
        assert "captures the step" in front.plan()
        actual = trained(model, [_evaluate(front), fit(front)])
    assert_equally_trained(train_plain(DENSE, lambda plain, _: [_evaluate(plain), fit(plain)]), actual)


class FailsFirst(OwnLoss, keras.Model):
    """Its training step makes the optimizer's variables, and then uses the batch's size as a number."""

    def __init__(self, fails):
        super().__init__()
        self.dense, self.fails = keras.layers.Dense(1), fails

    def call(self, x):
        return self.dense(x)

    def returned(self, x, loss):
        if self.fails:
            self.fails = False
            return {"loss": loss / x.shape[0]}
        return {"loss": loss}


def test_a_training_step_whose_first_trace_fails_trains_exactly_afterwards():
    def build(fails=False):
        model = FailsFirst(fails)
        model(np.zeros((1, 5)))
        model.compile("adam", "mse")
        return model

    model = compiled(lambda: build(fails=True))
    with distributed(model, strategy="PS") as front:
        with pytest.raises(ValueError, match="None values") as found:
            fit(front)
        place, why = found.value.__notes__
        assert f'File "{__file__}"' in place and place.endswith('return {"loss": loss / x.shape[0]}')
        assert why.endswith("take tf.map_fn or tf.vectorized_map.")
        actual = trained(model, [fit(front)])
    assert_equally_trained(train_plain(build, lambda plain, _: [fit(plain)]), actual)


class Drawn(StrategyBuilder):
    """Another strategy each time it is asked, whatever it was before. Its compressors' state goes by its id."""

    def __init__(self):
        self.built = []

    def build(self, graph_item, resource_spec):
        chunks = random.SystemRandom().randrange(1, 2**31)
        strategy = AllReduce(chunk_size=chunks, bucket_bytes=chunks, compressor="HorovodCompressorEF")
        self.built.append(strategy.build(graph_item, resource_spec))
        return self.built[-1]


def test_a_strategy_is_built_once_for_the_plan_and_the_training():
    builder, data, model = Drawn(), even_data(), compiled(DENSE)
    with distributed(model, strategy=builder) as front:
        plan = front.plan(data.x, data.y)
        fit(front)
        assert front.plan(data.x, data.y) == plan
        assert without_memory(front.plan()) == without_memory(plan)
        _evaluate(front)
        fit(front, batch_size=3)
        assert without_memory(front.plan()) == without_memory(plan)
        assert len(builder.built) == 1
        assert builder.built[0].id in plan
        front.compile(**DENSE.compile_arguments("sgd"))
        fit(front)
        assert len(builder.built) == 2
        assert builder.built[1].id in front.plan()


def test_a_plan_without_a_batch_is_of_the_strategy_that_trains():
    builder = Drawn()
    with distributed(compiled(DENSE), strategy=builder) as front:
        planned = front.plan().splitlines()[0]
        fit(front)
        assert front.plan().splitlines()[0] == planned
        assert [front.compressor_state().strategy] == [strategy.id for strategy in builder.built]
