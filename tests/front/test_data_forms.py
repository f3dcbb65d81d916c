"""Every form of data that `fit` takes, and every option that says which part of it is used."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.made_data import Batches
from tests.support.models import BY_NAME, DENSE, ReferenceModel, dense_data, ready
from tests.support.training import assert_equal_training, distributed

WEIGHTS = np.linspace(0.2, 2.0, 22)


def _growing(index: int) -> tuple[np.ndarray, ...]:
    """Batches of growing size."""
    data, rows = dense_data(), slice(index * (index + 1), (index + 1) * (index + 2))
    return data.x[rows], data.y[rows], WEIGHTS[rows]


def _dataset(batch: int = 7) -> tf.data.Dataset:
    data = dense_data()
    return tf.data.Dataset.from_tensor_slices((data.x, data.y, WEIGHTS)).batch(batch)


def _generator():
    data, start = dense_data(), 0
    while True:
        rows = np.arange(start, start + 5) % 22
        yield data.x[rows], data.y[rows]
        start += 5


FORMS = {
    "arrays_shuffled": lambda fit: fit(dense_data().x, dense_data().y, batch_size=7),
    "lists_of_tensors": lambda fit: fit(tf.constant(dense_data().x), tf.constant(dense_data().y), shuffle=False),
    "float32_arrays": lambda fit: fit(dense_data().x.astype("float32"), dense_data().y, shuffle=False),
    "dataset": lambda fit: fit(_dataset(), shuffle=False),
    "dataset_repeated": lambda fit: fit(_dataset().repeat(), steps_per_epoch=5, shuffle=False),
    "dataset_validated_by_dataset": lambda fit: fit(
        _dataset(), validation_data=_dataset(4), validation_steps=3, shuffle=False
    ),
    "pydataset": lambda fit: fit(Batches(_growing, 4), shuffle=False),
    "generator": lambda fit: fit(_generator(), steps_per_epoch=3, shuffle=False),
    "classes_weighted": lambda fit: fit(_dataset().map(lambda x, y, weight: (x, tf.cast(y > 0, tf.int64))),
                                        class_weight={0: 0.2, 1: 3.0}, shuffle=False),
    "validation_data_weighted": lambda fit: fit(
        dense_data().x, dense_data().y, shuffle=False, validation_data=(dense_data(9).x, dense_data(9).y, WEIGHTS[:9])
    ),
}


@pytest.mark.quick("arrays_shuffled", "pydataset", "generator")
@pytest.mark.parametrize("form", FORMS)
def test_form(form: str):
    def program(front, model):
        history = FORMS[form](lambda *data, **options: front.fit(*data, **{"epochs": 2, "verbose": 0, **options}))
        return {"history": history.history, "epochs": history.epoch}

    assert_equal_training(DENSE, program, replicas=3)


@pytest.mark.quick("heads")
@pytest.mark.parametrize("name", ["embedding", "heads"])
def test_lists_and_dicts_of_inputs_in_a_dataset(name: str):
    reference = BY_NAME[name]

    def program(front, model):
        data = reference.data()
        x = tuple(data.x) if isinstance(data.x, list) else data.x
        dataset = tf.data.Dataset.from_tensor_slices((x, data.y)).batch(7)
        return front.fit(dataset, epochs=2, shuffle=False, verbose=0).history

    assert_equal_training(reference, program, replicas=3)


def test_sequences_whose_length_changes_from_batch_to_batch():
    reference = ReferenceModel(
        "any_length",
        lambda: keras.Sequential(
            [keras.Input((None, 3), name="x"), keras.layers.LSTM(4, name="lstm"), keras.layers.Dense(1, name="out")],
            name="any_length",
        ),
        dense_data,
        lambda: {"loss": "mse"},
    )

    def batches():
        random = np.random.default_rng(4)
        for length in (3, 5, 3, 2):
            x = random.normal(size=(7, length, 3))
            yield x, x.mean(axis=(1, 2))[:, None]

    def program(front, model):
        signature = (tf.TensorSpec((None, None, 3), "float64"), tf.TensorSpec((None, 1), "float64"))
        dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(4))
        return front.fit(dataset, epochs=1, shuffle=False, verbose=0).history

    assert_equal_training(reference, program, replicas=3, built=False)


def test_inputs_as_a_list_and_as_a_dict_are_different_batches():
    """A dict flattens in the order of its keys, which need not be that of the inputs."""
    inputs = [keras.Input((3,), name="z"), keras.Input((3,), name="a")]
    hidden = keras.layers.Subtract()([inputs[0], keras.ops.multiply(inputs[1], 3.0)])
    model = ready(keras.Model(inputs, keras.layers.Dense(1, name="out")(hidden)), "sgd", "mse", jit_compile=False)
    rng = np.random.default_rng(3)
    first, second, y = rng.normal(size=(7, 3)), rng.normal(size=(7, 3)), rng.normal(size=(7, 1))
    forms = [first, second], {"z": first, "a": second}, {"a": second, "z": first}
    expected = model.predict(forms[0], verbose=0)
    with distributed(model) as front:
        for form in forms:
            np.testing.assert_allclose(front.predict(form, verbose=0), expected, rtol=1e-12)
        assert len({front.evaluate(form, y, verbose=0) for form in forms}) == 1
