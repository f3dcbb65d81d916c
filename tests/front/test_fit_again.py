"""`fit` after `fit`, another strategy on trained weights, and the ways to a distributed model."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from autodist_core import ResourceSpec
from autodist_core.strategy import PS, AllReduce
from autodist_keras import DistributedModel
from tests.support.compare import assert_same, named
from tests.support.distributed import distributed
from tests.support.models import BY_NAME, DENSE, dense_data
from tests.support.training import seeded
from tests.support.twins import QUIET, assert_same_outcome, flat, run_plain, state


def _fit(front, epochs: int = 2, **options):
    data = dense_data()
    return front.fit(data.x, data.y, epochs=epochs, **{**QUIET, **options}).history


@pytest.mark.parametrize("builder", ["AllReduce", "PS"])
def test_a_second_fit_continues_where_the_first_ended(builder: str):
    assert_same_outcome(lambda front, model: [_fit(front), _fit(front, batch_size=5)], replicas=3, builder=builder)


def test_fit_evaluate_and_single_batches_in_turn():
    def program(front, model):
        data = dense_data()
        results = []
        for rows in (slice(0, 9), slice(9, 22)):
            results.append(_fit(front, 1))
            results.append(front.train_on_batch(data.x[rows], data.y[rows]))
            results.append(front.evaluate(data.x[rows], data.y[rows], verbose=0))
        return results

    assert_same_outcome(program, replicas=2)


def test_compiling_again_keeps_weights_and_replaces_the_optimizer():
    def program(front, model):
        results = [_fit(front)]
        front.compile(keras.optimizers.RMSprop(0.01, name="rms"), "mae", jit_compile=False)
        return [*results, _fit(front)]

    assert_same_outcome(program, replicas=2)


@pytest.mark.parametrize("first, second", [(AllReduce(), PS()), (PS(), AllReduce())], ids=["to_ps", "to_all_reduce"])
def test_compiling_with_another_strategy_keeps_weights(first, second):
    def plain(front, model):
        results = [_fit(front)]
        front.compile(**DENSE.compile_arguments("adam"))
        return [*results, _fit(front)]

    expected = run_plain(plain)
    model = seeded(DENSE.build)
    with distributed(model) as front:
        front.compile(**DENSE.compile_arguments("adam"), strategy=first)
        results = [_fit(front)]
        before = named(model.weights)
        front.compile(**DENSE.compile_arguments("adam"), strategy=second)
        assert_same(before, named(model.weights), tolerance=0.0)
        results.append(_fit(front))
        assert_same(expected, flat({"result": results, "state": state(model)}))


@pytest.mark.every(5)
@pytest.mark.parametrize("name", ["dense", "embedding"])
@pytest.mark.parametrize("strategy", [None, "PS", "AllReduce"])
def test_a_compiled_model_needs_no_compile(name: str, strategy):
    reference = BY_NAME[name]
    data = reference.data()

    def program(front, model):
        return front.fit(data.x, data.y, epochs=2, **QUIET).history

    model = seeded(reference.build)
    model.compile(**reference.compile_arguments("adam"))
    with DistributedModel(model, ResourceSpec.local(cpus=2), strategy=strategy) as front:
        assert front.model is model
        actual = flat({"result": program(front, model), "state": state(model)})
    assert_same(run_plain(program, reference), actual)


def test_weights_are_the_users_after_close():
    model = seeded(DENSE.build)
    with distributed(model) as front:
        front.compile(**DENSE.compile_arguments("adam"))
        _fit(front)
        inside = state(model)
    assert_same(flat(inside), flat(state(model)), tolerance=0.0)


def test_afterwards_the_model_is_keras_again():
    """Plain `fit` of the same object continues the training, with Keras's own functions."""
    model = seeded(DENSE.build)
    with distributed(model) as front:
        front.compile(**DENSE.compile_arguments("adam"))
        _fit(front)
    _fit(model)
    expected = run_plain(lambda front, model: [_fit(front), _fit(front)])
    assert_same({k: v for k, v in expected.items() if k.startswith("state")}, flat({"state": state(model)}))


def test_methods_may_take_the_place_of_the_models_own(tmp_path):
    def program(front, model):
        if front is not model:
            for name in ("compile", "fit", "evaluate", "save"):
                setattr(model, name, getattr(front, name))
        data = dense_data()
        model.compile(**DENSE.compile_arguments("adam"))
        model.save(tmp_path / "begun.keras")
        history = model.fit(data.x, data.y, validation_data=(data.x, data.y), epochs=2, **QUIET).history
        return [history, model.evaluate(data.x, data.y, verbose=0)]

    assert_same_outcome(program)


def test_other_attributes_are_the_models():
    model = seeded(DENSE.build)
    with distributed(model) as front:
        assert front.layers is not None and [layer.name for layer in front.layers] == ["first", "second", "out"]
        assert front.count_params() == model.count_params()
        assert front.get_layer("out") is model.get_layer("out")
        assert all(np.array_equal(a, b) for a, b in zip(front.get_weights(), model.get_weights(), strict=True))
        with pytest.raises(AttributeError, match="no_such_thing"):
            _ = front.no_such_thing


def test_the_plan_names_every_variable_before_anything_runs():
    model = seeded(DENSE.build)
    with distributed(model) as front:
        front.compile(**DENSE.compile_arguments("adam"), strategy=PS())
        text = str(front.plan())
    for variable in model.trainable_variables:
        assert variable.path.removeprefix("dense/") in text
    assert "2 replicas" in text and "ps(" in text
