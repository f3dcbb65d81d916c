"""`evaluate`, `predict` and the calls on one batch give one device's numbers, in one device's order."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.compare import assert_same, flat
from tests.support.models import BY_NAME, DENSE, dense_data, ready
from tests.support.steps import ComparesInInference
from tests.support.training import assert_equal_training, distributed, seeded


@pytest.mark.quick("1-2")
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


@pytest.mark.quick("heads")
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
    model = ready(Halves(), "sgd", "mse")
    expected = model.predict(x, verbose=0)
    with distributed(model, replicas=2) as front:
        assert_same(expected, front.predict(x, verbose=0))


def test_batch_normalization_uses_its_moving_averages():
    reference = BY_NAME["convolution"]

    def program(front, model):
        data = reference.data()
        model.get_layer("norm").moving_mean.assign([0.5, -0.5, 0.25, 0.1])
        return {"predict": front.predict(data.x, batch_size=7, verbose=0),
                "evaluate": front.evaluate(data.x, data.y, batch_size=7, verbose=0)}  # fmt: skip

    assert_equal_training(reference, program, built=False)


def _predicts(**results) -> keras.Model:
    """A model that returns what the functions make of its inputs."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, {name: keras.layers.Lambda(made, name=name)(inputs) for name, made in results.items()})
    model.compile(jit_compile=False)
    model.name = "functional"
    return model


def _lower(x):
    """A matrix with the examples along both axes."""
    return tf.linalg.band_part(tf.ones([tf.shape(x)[0], tf.shape(x)[0]], x.dtype), -1, 0)


TWENTY = np.random.default_rng(3).normal(size=(20, 4))


def test_results_that_have_no_row_for_each_example_are_those_of_the_whole_batch(caplog):
    model = _predicts(
        rows=lambda x: 2 * x,
        transposed=tf.transpose,
        transposed_column=lambda x: tf.transpose(x)[..., None],
        chosen=lambda x: tf.boolean_mask(x, x[:, 0] > 0),
        mean=lambda x: tf.reduce_mean(x, 0, keepdims=True),
        mean_of_columns=lambda x: tf.reduce_mean(x, 0),
        number=tf.reduce_mean,
        sum=lambda x: tf.reduce_sum(x, 0),
        largest=lambda x: tf.reduce_max(x, 0),
        any=lambda x: tf.reduce_any(x > 1),
        examples=lambda x: tf.shape(x)[:1],
        features=lambda x: tf.shape(x)[1:],
        ragged=lambda x: tf.RaggedTensor.from_row_lengths(tf.reshape(x, [-1]), tf.fill([tf.shape(x)[0]], 4)),
    )
    expected = model.predict(TWENTY, batch_size=10, verbose=0)
    with distributed(model, replicas=3) as front:
        found = front.predict(TWENTY, batch_size=10, verbose=0)
    assert_same(*({**each, "ragged": each["ragged"].to_tensor().numpy()} for each in (expected, found)))
    said = [record.getMessage() for record in caplog.records if record.name == "autodist"]
    assert not any("result" in message or "'ragged'" in message for message in said)


def test_results_that_the_replicas_do_not_give_are_named(caplog):
    model = _predicts(
        spread=lambda x: tf.math.reduce_std(x, 0),
        place=lambda x: tf.argmax(x, 0),
        where=lambda x: tf.where(x[:, 0] > 0),
        twice=lambda x: tf.concat([x, x], 0),
        distinct=lambda x: tf.unique(tf.cast(x[:, 0], tf.int32))[0],
        shape=tf.shape,
        running=lambda x: _lower(x) @ x,
        turned=lambda x: tf.reshape(tf.transpose(x), tf.shape(x)),
        sorted=lambda x: tf.concat([x[x[:, 0] > 0], x[x[:, 0] <= 0]], 0),
    )
    expected = model.predict(TWENTY, batch_size=10, verbose=0)
    with distributed(model, replicas=3) as front:
        found = front.predict(TWENTY, batch_size=10, verbose=0)
    assert {name: each.shape for name, each in found.items() if name != "distinct"} == {
        name: each.shape for name, each in expected.items() if name != "distinct"
    }
    # TensorFlow may say that plain Keras traces often, and seams that a version was not tested.
    (said,) = [each.getMessage() for each in caplog.records if each.name == "autodist" and each.module != "seam"]
    said = re.sub(r"\(functional(_1)?/\S+\)", "(...)", said)
    rows, part = "has the replicas' rows, one behind the other, and", "of each replica's part of the batch"
    for note in [
        "'spread' of the step is the replicas' mean, and Mean (...) does not make a mean over the examples",
        f"'place' of the step is the first replica's, and ArgMax (...) makes another value {part}",
        f"'where' of the step {rows} Where (...) gives each example a value of its place in the batch, of which a "
        "replica has its part",
        f"'twice' of the step {rows} one device has the whole batch 2 times, one behind the other",
        f"'distinct' of the step {rows} Unique (...) takes each distinct entry of a replica's part of the batch once",
        f"'sorted' of the step {rows} one device puts all examples of one choice before those of another choice",
        f"'turned' of the step {rows} Reshape (...) has parts of one example in several rows",
        f"'shape' of the step is the first replica's, and the number of examples makes another value {part}",
    ]:
        assert f"not exact: result {note}" in said
    assert "not exact: in layer 'running', Pack (...) makes a value that depends on how many examples" in said


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_result_without_an_axis_of_examples_is_refused_before_anything_runs(replicas: int):
    """The parts of two replicas have equally many examples: their products could be put one below the other."""
    model = _predicts(gram=lambda x: tf.nn.softmax(tf.matmul(x, x, transpose_b=True)))
    said = r"^result 0 of predict_step, made by '.*', has no axis"
    with distributed(model, replicas=replicas) as front:
        with pytest.raises(CaptureError, match=said):
            front.predict(TWENTY, batch_size=10, verbose=0)
        assert front.predict(TWENTY[:1], verbose=0)["gram"].tolist() == [[1.0]]


def test_notes_name_the_step_that_evaluates_or_predicts(caplog):
    model = ComparesInInference([keras.Input((5,)), keras.layers.Dense(1)], name="own")
    model.compile("sgd", "mse", jit_compile=False)
    data = dense_data()
    with distributed(model, replicas=3) as front:
        front.evaluate(data.x, data.y, verbose=0)
        front.predict(data.x, verbose=0)
    evaluated, predicted = [record.getMessage() for record in caplog.records if record.name == "autodist"]
    assert evaluated.startswith("own, in evaluate and validation: not exact: result 'spread' of the step is the ")
    assert evaluated.endswith("Max (Max) does not make a mean over the examples.")
    assert predicted.startswith(
        "own, in predict: not exact: in predict_step, TopKV2 (argsort/TopKV2) goes along the examples of a batch, and "
        "a replica has only its own (File "
    )


def test_a_model_without_a_loss_predicts():
    """`predict` needs no `compile`, here as in Keras."""
    data = dense_data()
    expected = seeded(DENSE.build).predict(data.x, batch_size=7, verbose=0)
    with distributed(seeded(DENSE.build), replicas=3) as front:
        assert_same(flat([expected]), flat([front.predict(data.x, batch_size=7, verbose=0)]))
