"""`fit` after `fit`, another strategy on trained weights, and the ways to a distributed model."""

import keras
import pytest

from autodist_core import ResourceSpec
from autodist_core.strategy import PS, AllReduce
from autodist_keras import DistributedModel
from tests.support.compare import assert_equally_trained, assert_same, named
from tests.support.models import DENSE, even_data
from tests.support.training import (
    QUIET,
    assert_equal_training,
    compiled,
    distributed,
    fit,
    plain,
    run,
    train_plain,
    trained,
)


def _fit(front, epochs: int = 2, **options):
    data = even_data()
    return front.fit(data.x, data.y, epochs=epochs, **{**QUIET, **options}).history


def test_fit_evaluate_and_single_batches_in_turn():
    def program(front, model):
        data = even_data()
        results = []
        for rows in (slice(0, 9), slice(9, 21)):
            results.append(_fit(front, 1))
            results.append(front.train_on_batch(data.x[rows], data.y[rows]))
            results.append(front.evaluate(data.x[rows], data.y[rows], verbose=0))
        return results

    assert_equal_training(DENSE, program)


def test_compiling_again_keeps_weights_and_replaces_the_optimizer_and_the_strategy():
    def program(front, model):
        results = [_fit(front)]
        before = named(model.weights)
        front.compile(keras.optimizers.RMSprop(0.01, name="rms"), "mae", jit_compile=False)
        assert_same(before, named(model.weights), tolerance=0.0)
        results.append(_fit(front))
        before = named(model.weights)
        front.compile(**DENSE.compile_arguments("adam"), **({} if front is model else {"strategy": PS()}))
        assert_same(before, named(model.weights), tolerance=0.0)
        return [*results, _fit(front)]

    assert_equal_training(DENSE, program, strategy=AllReduce())


@pytest.mark.quick("None")
@pytest.mark.parametrize("strategy", [None, "PS"])
def test_a_compiled_model_needs_no_compile(strategy):
    model = compiled(DENSE)
    with DistributedModel(model, ResourceSpec.local(cpus=2), strategy=strategy) as front:
        assert front.model is model
        actual = run(lambda front, model: fit(front, DENSE.data()), front, model)
    assert_equally_trained(plain(DENSE), actual)


def test_afterwards_the_model_is_keras_again():
    """Plain `fit` of the same object continues the training, with Keras's own functions."""
    model = compiled(DENSE)
    with distributed(model) as front:
        _fit(front)
    _fit(model)
    expected = train_plain(DENSE, lambda front, model: [_fit(front), _fit(front)])
    assert_same(expected.state, trained(model).state)


def test_methods_may_take_the_place_of_the_models_own(tmp_path):
    def program(front, model):
        if front is not model:
            for name in ("compile", "fit", "evaluate", "save"):
                setattr(model, name, getattr(front, name))
        data = even_data()
        model.compile(**DENSE.compile_arguments("adam"))
        model.save(tmp_path / "begun.keras")
        history = model.fit(data.x, data.y, validation_data=(data.x, data.y), epochs=2, **QUIET).history
        return [history, model.evaluate(data.x, data.y, verbose=0)]

    assert_equal_training(DENSE, program)
