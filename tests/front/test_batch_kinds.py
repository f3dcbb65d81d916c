"""Batches of strings, ragged and sparse tensors, alone and in dictionaries, in every call that takes a batch."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from autodist_core.errors import CaptureError
from tests.support.compare import assert_same
from tests.support.training import assert_equal_training, distributed, seeded

EXAMPLES, BATCH = 21, 7
WORDS = np.array(["red", "blue", "green", "cyan", "pink", "grey", "teal", "gold"])
RANDOM = np.random.default_rng(5)
LENGTHS = np.r_[6, RANDOM.integers(1, 4, EXAMPLES - 1)]
"""The longest example is in the first half of the first batch: other replicas alone would pad to fewer columns."""
IDS = tf.RaggedTensor.from_row_lengths(RANDOM.integers(0, 9, LENGTHS.sum()), LENGTHS)
TEXTS = np.array([" ".join(RANDOM.choice(WORDS, length)) for length in LENGTHS])
NUMBERS = RANDOM.normal(size=(EXAMPLES, 3))
CLASSES = RANDOM.integers(0, 9, (EXAMPLES, 1))
Y = RANDOM.normal(size=(EXAMPLES, 1))


def _strings() -> keras.Model:
    """Every layer that keeps a vocabulary, a table or statistics, behind a dictionary of inputs."""
    inputs = {
        "word": keras.Input((1,), dtype="string", name="word"), "text": keras.Input((), dtype="string", name="text"),
        "class": keras.Input((1,), dtype="int64", name="class"), "numbers": keras.Input((3,), name="numbers"),
    }
    vectors = layers.TextVectorization(name="vectors")
    vectors.adapt(TEXTS)
    normal = layers.Normalization(name="normal")
    normal.adapt(NUMBERS)
    embedded = [
        layers.StringLookup(vocabulary=list(WORDS[:5]))(inputs["word"]), layers.Hashing(7)(inputs["word"]),
        layers.HashedCrossing(7)((inputs["word"], inputs["class"])),
        layers.IntegerLookup(vocabulary=[1, 2, 5])(inputs["class"]),
        layers.Discretization([-1.0, 0.0, 1.0])(inputs["numbers"]), vectors(inputs["text"]),
    ]
    # The mean over the padded words depends on how long the longest text of the batch is.
    parts = [layers.GlobalAveragePooling1D()(layers.Embedding(12, 2)(each)) for each in embedded]
    parts += [
        layers.StringLookup(vocabulary=list(WORDS[:3]), output_mode="multi_hot")(inputs["word"]),
        layers.CategoryEncoding(9, output_mode="one_hot")(inputs["class"]), normal(inputs["numbers"]),
    ]
    return _compiled(keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(parts))))


class Ragged(keras.Model):
    """Ragged integers, floats of two ragged axes and strings; padded, masked by lengths, and reduced as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out, self.hashing = layers.Embedding(9, 3), layers.Dense(1), layers.Hashing(9)

    def call(self, inputs: dict[str, Any]) -> Any:
        ids, lengths = inputs["ids"], inputs["ids"].row_lengths()
        padded = self.embedding(ids.to_tensor())
        mask = tf.cast(tf.sequence_mask(lengths), padded.dtype)[:, :, tf.newaxis]
        words = self.embedding(self.hashing(inputs["words"].to_tensor("")))
        numbers = tf.reduce_sum(tf.reduce_mean(inputs["numbers"], axis=2), axis=1)
        means = [tf.reduce_mean(part, axis=1) for part in (padded, padded * mask, words)]
        return self.out(tf.concat([*means, numbers], axis=1))


class Sparse(keras.Model):
    """Sparse matrices beside dense numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = layers.Dense(4, activation="tanh"), layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        sparse, mixed, dense = inputs
        added = tf.sparse.to_dense(tf.sparse.reorder(mixed)) + dense
        return self.out(tf.concat([self.hidden(sparse), added], axis=1))


def _compiled(model: keras.Model) -> keras.Model:
    model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
    return model


def _numbers_of_two_ragged_axes() -> tf.RaggedTensor:
    inner = RANDOM.integers(1, 4, LENGTHS.sum())
    rows = tf.RaggedTensor.from_row_lengths(RANDOM.normal(size=(inner.sum(), 2)), inner)
    return tf.RaggedTensor.from_row_lengths(rows, LENGTHS)


DENSE = NUMBERS * (RANDOM.random(NUMBERS.shape) < 0.4)
SPARSE = tf.sparse.from_dense(DENSE)
BACKWARDS = tf.SparseTensor(SPARSE.indices[::-1], SPARSE.values[::-1], SPARSE.dense_shape)
"""The same matrix. Its entries are not in the order of the rows."""
KINDS: dict[str, tuple[Callable[[], keras.Model], Any]] = {
    "strings": (_strings, {
        "word": RANDOM.choice(WORDS, (EXAMPLES, 1)), "text": TEXTS, "class": CLASSES, "numbers": NUMBERS,
    }),
    "ragged": (lambda: _compiled(Ragged()), {
        "ids": IDS, "words": tf.strings.split(TEXTS), "numbers": _numbers_of_two_ragged_axes(),
    }),
    "sparse": (lambda: _compiled(Sparse()), (SPARSE, SPARSE, NUMBERS)),
}  # fmt: skip


def _dataset(x: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, Y)).batch(BATCH)


def epochs_of(x: Any) -> Callable[[Any, keras.Model], Any]:
    """A program that fits a dataset, evaluates and predicts."""

    def program(front: Any, model: keras.Model) -> Any:
        history = front.fit(_dataset(x), epochs=2, shuffle=False, verbose=0).history
        return {
            **history, "evaluate": front.evaluate(_dataset(x), verbose=0),
            "predict": front.predict(_dataset(x), verbose=0),
        }

    return program


@pytest.mark.quick("strings-PS-3", "sparse-PS-3")
@pytest.mark.parametrize(("strategy", "replicas"), [("AllReduce", 2), ("PS", 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_fit_evaluate_and_predict_give_the_numbers_of_one_device(kind: str, strategy: str, replicas: int):
    make, x = KINDS[kind]
    assert_equal_training(make, epochs_of(x), strategy=strategy, replicas=replicas)


def _single_calls(front: Any, model: keras.Model) -> Any:
    sparse = (SPARSE, BACKWARDS, NUMBERS)
    return {
        "arrays": front.fit((SPARSE, SPARSE, NUMBERS), Y, batch_size=BATCH, shuffle=False, verbose=0).history,
        "train": front.train_on_batch(sparse, Y), "test": front.test_on_batch(sparse, Y),
        "predict": front.predict_on_batch(sparse),
    }


def test_single_batches_and_whole_tensors_give_the_numbers_of_one_device():
    assert_equal_training(KINDS["sparse"][0], _single_calls, strategy="PS", replicas=3)


def _adapting() -> keras.Model:
    numbers, text = keras.Input((3,), name="numbers"), keras.Input((), dtype="string", name="text")
    adapted = [
        layers.Normalization(name="normal"), layers.Discretization(num_bins=3, name="bins"),
        layers.TextVectorization(max_tokens=9, output_sequence_length=4, name="words"),
        layers.StringLookup(max_tokens=9, pad_to_max_tokens=True, output_mode="tf_idf", name="weights"),
    ]
    _adapt(adapted, 3)
    normal, bins, words, weights = adapted
    parts = [normal(numbers), weights(text[:, tf.newaxis])]
    parts += [layers.Flatten()(layers.Embedding(9, 2)(each)) for each in (bins(numbers), words(text))]
    model = keras.Model({"numbers": numbers, "text": text}, layers.Dense(1)(layers.Concatenate()(parts)))
    return _compiled(model)


def _adapt(adapted: Any, examples: int) -> None:
    for layer in adapted:
        data = {"words": TEXTS, "weights": WORDS[:, np.newaxis]}.get(layer.name, NUMBERS)
        layer.adapt(data[:examples])


def _adapted_between_fits(front: Any, model: keras.Model) -> Any:
    results = []
    for examples in (4, EXAMPLES):
        _adapt([model.get_layer(name) for name in ("normal", "bins", "words", "weights")], examples)
        if front is model:
            # Keras goes on with what it has traced, until the model is compiled again.
            model.compile(model.optimizer, "mse", metrics=["mae"], jit_compile=False)
        data = _dataset({"numbers": NUMBERS, "text": TEXTS})
        results += [front.fit(data, shuffle=False, verbose=0).history, front.predict(data, verbose=0)]
    return results


def test_what_a_layer_learns_between_two_fits_counts_from_the_next_one():
    assert_equal_training(_adapting, _adapted_between_fits, strategy="PS", replicas=3)


def test_a_stateful_layer_trains_on_one_replica_and_is_refused_on_two():
    def make() -> keras.Model:
        inputs = keras.Input(batch_shape=(3, 4, 2))
        return _compiled(keras.Model(inputs, layers.Dense(1)(layers.GRU(3, stateful=True, name="gru")(inputs))))

    def program(front: Any, model: keras.Model) -> Any:
        return front.fit(NUMBERS[:9, :2].reshape(9, 1, 2).repeat(4, 1), Y[:9], batch_size=3, shuffle=False, verbose=0)

    assert_equal_training(make, lambda front, model: program(front, model).history, replicas=1)
    with distributed(seeded(make)) as front:
        with pytest.raises(ValueError, match=r"layer 'gru' of model .* is stateful: .* stateful=False"):
            program(front, front.model)
        with pytest.raises(ValueError, match=r"layer 'gru' of model .* is stateful: .* stateful=False"):
            front.plan()


class Distinct(layers.Layer):
    """Looks each different number up once. How many there are decides the sizes of its tensors."""

    def build(self, shape: Any) -> None:
        self.table = layers.Embedding(9, 3, name="table")
        self.table.build(shape)

    def call(self, ids: Any) -> Any:
        different, places = tf.unique(tf.reshape(ids, [-1]))
        return tf.reshape(tf.gather(self.table(different), places), [tf.shape(ids)[0], -1, 3])

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape, 3)


@pytest.mark.quick("(0, 4)")
@pytest.mark.parametrize("lengths", [(4, 0, 3), (0, 4), (0, 0)], ids=str)
def test_batches_may_have_an_axis_without_entries(lengths: tuple[int, ...]):
    """A product of sizes is 0 then, whatever the number of examples is: it does not fix that number."""
    def build() -> keras.Model:
        ids = keras.Input((None,), dtype="int32", name="ids")
        return _compiled(keras.Model(ids, layers.Dense(1, name="out")(keras.ops.sum(Distinct(name="rows")(ids), 1))))

    random, results = np.random.default_rng(3), []
    batches = [random.integers(0, 9, (BATCH, length)).astype("int32") for length in lengths]
    plain, model = seeded(build), seeded(build)
    with distributed(model, replicas=3) as front:
        for trainer in (plain, front):
            results.append([trainer.train_on_batch(x, Y[:BATCH]) for x in batches])
    assert_same({"losses": np.array(results[0])}, {"losses": np.array(results[1])})
    assert_same(*({each.path: each.numpy() for each in one.variables} for one in (plain, model)))


class Doubled(keras.Model):
    def call(self, inputs: Any) -> Any:
        ragged, sparse = inputs
        return {"ragged": 2 * ragged, "sparse": tf.sparse.map_values(tf.negative, sparse)}


@pytest.mark.parametrize("batch", [BATCH, 2])
def test_predict_returns_ragged_and_sparse_results_whole_and_in_order(batch: int):
    numbers = _numbers_of_two_ragged_axes()
    dataset = tf.data.Dataset.from_tensor_slices(((numbers, SPARSE),)).batch(batch)
    plain = Doubled().predict(dataset, verbose=0)
    with distributed(Doubled(), replicas=3) as front:
        found = front.predict(dataset, verbose=0)
    assert [type(each) for each in found.values()] == [tf.RaggedTensor, tf.SparseTensor]
    assert found["ragged"].shape.as_list() == plain["ragged"].shape.as_list() == [EXAMPLES, None, None, 2]
    parts = [tf.nest.flatten(each, expand_composites=True) for each in (plain, found)]
    assert_same(*({str(index): part.numpy() for index, part in enumerate(each)} for each in parts), tolerance=0.0)


def test_a_step_that_logs_a_ragged_tensor_is_refused():
    class Logging(Ragged):
        def train_step(self, data: Any) -> Any:
            return {**super().train_step(data), "ids": data[0]["ids"]}

    model = seeded(lambda: _compiled(Logging()))
    text = "result 'ids' of the step is a RaggedTensor, .* Return dense tensors"
    with distributed(model) as front, pytest.raises(CaptureError, match=text):
        front.fit(_dataset(KINDS["ragged"][1]), shuffle=False, verbose=0)


def test_plan_and_verify_take_them():
    make, x = KINDS["ragged"]
    with distributed(seeded(make), strategy="PS", replicas=3) as front:
        assert "not exact" not in front.plan(_dataset(x))
        lines = front.verify(_dataset(x), steps=2).splitlines()
        assert front.inexact == () and not any("note:" in line for line in lines)
