"""`evaluate`, `predict` and the calls on one batch give one device's numbers, in one device's order."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.compare import assert_same, flat
from tests.support.models import BY_NAME, DENSE, dense_data
from tests.support.training import QUIET, assert_equal_training, distributed, seeded


@pytest.mark.quick("8-3", "1-2")
@pytest.mark.parametrize("batch, replicas", [(7, 2), (8, 3), (1, 2), (100, 3)])
def test_evaluate_and_predict_of_any_batch_size(batch: int, replicas: int):
    def program(front, model):
        data = dense_data()
        weights = np.linspace(0.1, 2.0, len(data.x))
        return {
            "evaluate": front.evaluate(data.x, data.y, batch_size=batch, verbose=0, return_dict=True),
            "list": front.evaluate(data.x, data.y, sample_weight=weights, batch_size=batch, verbose=0),
            "predict": front.predict(data.x, batch_size=batch, verbose=0),
        }

    assert_equal_training(DENSE, program, replicas=replicas, built=False)


@pytest.mark.quick("embedding", "heads")
@pytest.mark.parametrize("name", ["convolution", "embedding", "lstm", "heads"])
def test_predictions_are_in_order_and_keep_their_structure(name: str):
    reference = BY_NAME[name]

    def program(front, model):
        data = reference.data()
        return {"all": front.predict(data.x, batch_size=5, verbose=0), "first": front.predict_on_batch(data.x)}

    assert_equal_training(reference, program, replicas=3, built=False)


def test_outputs_of_names_that_look_alike_are_two():
    class Halves(keras.Model):
        def call(self, x):
            _, one = tf.split(x, 2, axis=1)  # split:1
            other, _ = tf.split(tf.tanh(x), 2, axis=1)  # split_1
            return {"one": one, "other": other}

    x = np.random.default_rng(0).normal(size=(8, 4))
    model = Halves()
    model.compile("sgd", "mse")
    expected = model.predict(x, verbose=0)
    with distributed(model, replicas=2) as front:
        assert_same(expected, front.predict(x, verbose=0))


def test_after_training_they_use_the_trained_weights():
    def program(front, model):
        data = dense_data()
        front.fit(data.x, data.y, epochs=2, **QUIET)
        return {
            "evaluate": front.evaluate(data.x, data.y, batch_size=7, verbose=0, return_dict=True),
            "predict": front.predict(data.x, batch_size=7, verbose=0),
            "model": model(data.x),
        }

    assert_equal_training(DENSE, program, replicas=3)


def test_batch_normalization_uses_its_moving_averages():
    reference = BY_NAME["convolution"]

    def program(front, model):
        data = reference.data()
        model.get_layer("norm").moving_mean.assign([0.5, -0.5, 0.25, 0.1])
        return {"predict": front.predict(data.x, batch_size=7, verbose=0),
                "evaluate": front.evaluate(data.x, data.y, batch_size=7, verbose=0)}  # fmt: skip

    assert_equal_training(reference, program, built=False)


def test_datasets_and_steps():
    def program(front, model):
        data = dense_data()
        dataset = tf.data.Dataset.from_tensor_slices((data.x, data.y)).batch(6)
        return {
            "evaluate": front.evaluate(dataset, verbose=0, return_dict=True),
            "two": front.evaluate(dataset.repeat(), steps=2, verbose=0, return_dict=True),
            "predict": front.predict(dataset.map(lambda x, y: x), verbose=0),
            "three": front.predict(data.x, batch_size=4, steps=3, verbose=0),
        }

    assert_equal_training(DENSE, program, replicas=3, built=False)


@pytest.mark.parametrize("examples", [9, 1])
def test_one_batch_at_a_time(examples: int):
    def program(front, model):
        data = dense_data(examples)
        weights = np.linspace(0.5, 1.5, examples)
        return {
            "train": [front.train_on_batch(data.x, data.y, return_dict=True) for _ in range(3)],
            "weighted": front.train_on_batch(data.x, data.y, sample_weight=weights),
            "test": front.test_on_batch(data.x, data.y, return_dict=True),
            "predict": front.predict_on_batch(data.x),
        }

    assert_equal_training(DENSE, program, replicas=2)


def test_a_model_without_a_loss_predicts():
    """`predict` needs no `compile`, here as in Keras."""
    data = dense_data()
    expected = seeded(DENSE.build).predict(data.x, batch_size=7, verbose=0)
    with distributed(seeded(DENSE.build), replicas=3) as front:
        assert_same(flat([expected]), flat([front.predict(data.x, batch_size=7, verbose=0)]))
