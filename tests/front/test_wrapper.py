"""What the wrapper itself shows: signatures, attributes, its strategy, plans for machines that are not there."""

import copy
import functools
import inspect
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.runtime.kept_arrays import KEPT_VARIABLE
from autodist_core.strategy import PS, AllReduce
from autodist_keras import DistributedModel
from tests.support.compare import assert_same, state_in_order
from tests.support.models import BY_NAME, DENSE, dense_data, even_data
from tests.support.training import QUIET, assert_equal_training, compiled, distributed, fit, seeded

TWO_MACHINES = {"nodes": [{"address": "10.0.0.1", "chief": True}, {"address": "10.0.0.2"}]}


def test_help_shows_kerass_parameters():
    assert list(inspect.signature(DistributedModel.fit).parameters)[:4] == ["self", "x", "y", "batch_size"]
    assert list(inspect.signature(DistributedModel.compile).parameters)[-1] == "strategy"


def test_attributes_are_the_models():
    with distributed(compiled(DENSE)) as front:
        assert front.layers is not None and [layer.name for layer in front.layers] == [
            layer.name for layer in front.model.layers
        ]
        assert {"summary", "fit", "plan", "layers"} <= set(dir(front))
        front.optimizer.learning_rate = 0.5
        assert float(front.model.optimizer.learning_rate) == 0.5
        assert "2 replicas" in repr(front)


@pytest.mark.parametrize("use", [
    keras.models.clone_model, lambda front: keras.saving.save_model(front, "never.keras"),
    lambda front: keras.Sequential([front]), lambda front: front(X=0, y=0),
], ids=["clone", "save", "a layer", "scikit-learn"])  # fmt: skip
def test_where_keras_needs_its_own_model_the_error_says_what_to_pass(use):
    front = DistributedModel(compiled(DENSE))
    with pytest.raises((TypeError, ValueError)) as raised:
        use(front)
    said = " ".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "dm.model" in said or "pass a function that returns the DistributedModel" in said
    assert type(front.from_config(front.get_config())) is type(front.model)


def test_a_strategy_can_be_set_by_name():
    with distributed(compiled(DENSE)) as front:
        fit(front, epochs=1)
        front.strategy = "PS"
        assert isinstance(front.strategy, PS)
        fit(front, epochs=1)
        assert "ps(" in front.plan()


def test_a_plan_of_a_dataset_says_which_way_a_fit_would_send_it(monkeypatch):
    """It is known without the machines, unless the number of epochs decides."""
    data, model = dense_data(), compiled(DENSE)

    def of(dataset, strategy="PS"):
        notes = DistributedModel(model, TWO_MACHINES, strategy).plan(dataset).splitlines()
        (said,) = [line.partition("the data of a fit: ")[2] for line in notes if "the data of a fit" in line]
        return said

    pairs = tf.data.Dataset.from_tensor_slices((data.x, data.y))
    runs, rule = "each machine runs its tf.data pipeline (", "arrays of at most "
    assert of(pairs.batch(4)).startswith(runs) and "this program runs it too" in of(pairs.batch(4))
    whole = of(pairs.batch(4, drop_remainder=True))
    assert whole.endswith("takes its rows. If a machine cannot make the first batch, each batch is fed")
    in_python = pairs.map(lambda x, y: (tf.ensure_shape(tf.numpy_function(np.copy, [x], x.dtype), x.shape), y))
    assert of(in_python.batch(4)) == "fed each step: it runs Python functions (py_function or numpy_function)"
    assert of(pairs.batch(4), PS(staleness=2)).startswith(rule)
    assert of(pairs.concatenate(_of_a_large_constant(data)).batch(4)).startswith(rule)
    monkeypatch.setenv(KEPT_VARIABLE, "0")
    assert of(pairs.batch(4)).startswith("fed each step: it has ")


def _of_a_large_constant(data):
    """A dataset that contains 1.6 MB."""
    zeros = tf.data.Dataset.from_tensors(np.zeros(200_000))
    return zeros.map(lambda each: (data.x[0] + tf.cast(each[0], data.x.dtype), data.y[0]))


def test_the_plan_says_that_all_reduced_tables_travel_as_rows():
    reference = BY_NAME["embedding"]
    with distributed(seeded(reference.build), strategy="AllReduce") as front:
        front.compile(**reference.compile_arguments("adam"))
        assert "only rows travel, as they would to a server; every replica updates its own copy" in front.plan()
        front.strategy = PS()
        assert "only rows travel" not in front.plan()
    with distributed(seeded(reference.build), strategy="AllReduce", replicas=1) as front:
        front.compile(**reference.compile_arguments("adam"))
        assert "rows" not in front.plan()


def test_the_plan_says_what_is_guessed_without_a_batch():
    model, data, note = compiled(DENSE), even_data(), "without a batch it is not known which gradients are sparse"
    with distributed(model) as front:
        assert note in front.plan()
        assert note not in front.plan(data.x, data.y)
        front.fit(data.x, data.y, **QUIET)
        assert note not in front.plan()


@pytest.mark.quick("pickle")
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda front: pickle.loads(pickle.dumps(front))], ids=["deepcopy", "pickle"]
)
def test_a_copy_trains_on_as_the_original_does(copied):
    """From the same weights, optimizer variables and residuals."""
    with distributed(compiled(DENSE), strategy=AllReduce(compressor="HorovodCompressorEF")) as front:
        fit(front, epochs=1)
        with copied(front) as other:
            assert other.model is not front.model
            for each in (front, other):
                fit(each, epochs=1)
            assert_same(state_in_order(front.model), state_in_order(other.model), tolerance=0.0)
            assert_same(front.compressor_state().values, other.compressor_state().values, tolerance=0.0)


class _Mine(DistributedModel):
    """A wrapper of somebody's own."""


def test_a_copy_is_of_the_same_class():
    with _Mine(seeded(DENSE.build)) as front, copy.copy(front) as shallow, pickle.loads(pickle.dumps(front)) as deep:
        assert type(shallow) is type(deep) is _Mine


def test_what_is_the_wrappers_own_is_not_set_on_the_model():
    with distributed(compiled(DENSE)) as front:
        for name in ("plan", "inexact", "close"):
            with pytest.raises(AttributeError, match=rf"DistributedModel.{name} is the wrapper's own"):
                setattr(front, name, 1)
        with pytest.raises(AttributeError, match=r"no setting 'stratgy'. Did you mean 'strategy'\?"):
            front.stratgy  # noqa: B018
        with pytest.raises(AttributeError, match="no attribute 'zebra'"):
            front.zebra  # noqa: B018


def _three(front: DistributedModel):
    return functools.partial(front.fit, epochs=3)


@pytest.mark.quick("partial")
@pytest.mark.parametrize("put", [
    lambda front: setattr(front.model, "fit", front.fit),
    lambda front: setattr(front.model, "fit", _three(front)),
    lambda front: setattr(front.model, "fit", lambda *args, **kwargs: _three(front)(*args, **kwargs)),
    lambda front: setattr(front, "fit", _three(front)),
], ids=["method", "partial", "function", "on the wrapper"])  # fmt: skip
def test_what_is_put_in_the_place_of_the_models_fit_may_come_back_to_the_wrapper(put):
    model, plain = compiled(DENSE), compiled(DENSE)
    with distributed(model) as front:
        put(front)
        for each in (front, model):
            assert len(fit(each)["loss"]) == 3
    for _ in range(2):
        fit(plain)
    assert_same(state_in_order(plain), state_in_order(model))


def test_methods_may_take_the_place_of_the_models_own(tmp_path):
    def program(front, model):
        if front is not model:
            for name in ("compile", "fit", "evaluate", "save"):
                setattr(model, name, getattr(front, name))
        data = even_data()
        model.compile(**DENSE.compile_arguments("adam"))
        model.save(tmp_path / "begun.keras")
        return fit(model, validation_data=(data.x, data.y)), model.evaluate(data.x, data.y, verbose=0)

    assert_equal_training(DENSE, program)


def test_verify_compares_with_kerass_fit_whatever_is_in_its_place():
    model, data = seeded(DENSE.build), dense_data(16)

    def unknown(y, predicted):
        factor = tf.numpy_function(lambda value: value.std(), [y], y.dtype, False)
        return tf.reduce_mean(tf.square(y - predicted)) * tf.ensure_shape(factor, ())

    model.compile("sgd", unknown, jit_compile=False)
    with distributed(model) as front:
        model.fit = front.fit
        with pytest.raises(ValueError, match="differs from one device in"):
            front.verify(data.x, data.y)


def test_a_shallow_copy_is_a_second_wrapper_around_the_model():
    model, alone = compiled(DENSE), compiled(DENSE)
    fit(alone, epochs=2)
    with distributed(model) as front, copy.copy(front) as other:
        for each in (front, other):
            fit(each, epochs=1)
        assert other.model is model
    assert_same(state_in_order(alone), state_in_order(model))
