"""Strings, ragged and sparse tensors travel, too: as arrays that machines keep, and in the batches of datasets."""

import keras
import numpy as np
import tensorflow as tf

from tests.cluster.data.test_data_pipelines import FED, ON_MACHINES
from tests.cluster.over_hosts import LONG_TRAININGS, assert_equal_over_a_pair
from tests.support.made_data import untuned
from tests.support.models import Data, ReferenceModel
from tests.support.training import SEED

pytestmark = LONG_TRAININGS
WORDS = ["", "one", "three", "é", "a longer word", "x" * 30]


class Lengths(keras.layers.Layer):
    """The lengths of words; the sums of a ragged row, and a sparse row as a dense one."""

    def call(self, x):
        words = tf.cast(tf.strings.length(x["words"]), tf.float64)
        parts = [(words[:, tf.newaxis] if words.shape.rank == 1 else words) / 10.0]
        if "ragged" in x:
            parts.append(tf.reduce_sum(x["ragged"], axis=1)[:, tf.newaxis])
            parts.append(tf.sparse.to_dense(x["sparse"]))
        return tf.ensure_shape(tf.concat(parts, axis=1), [None, self.width])


class OfAllKinds(keras.Model):
    """A model of inputs of all kinds."""

    def __init__(self, width=1, name="kinds"):
        super().__init__(name=name)
        self.lengths = Lengths(name="lengths")
        self.lengths.width = width
        self.hidden = keras.layers.Dense(4, activation="tanh", name="hidden")
        self.out = keras.layers.Dense(1, name="out")
        self.hidden.build((None, width))
        self.out.build((None, 4))

    def call(self, x):
        return self.out(self.hidden(self.lengths(x)))


def arrays():
    rng = np.random.default_rng(3)
    words = np.array(WORDS, object)[rng.integers(0, len(WORDS), (22, 2))]
    return Data({"words": words}, rng.normal(size=(22, 1)))


STRINGS = ReferenceModel("strings", OfAllKinds, arrays, lambda: {"loss": "mse", "metrics": ["mae"]})
ALL = ReferenceModel("all", lambda: OfAllKinds(6), arrays, STRINGS.settings)


def kept(front, model):
    """Shuffled arrays of strings, which the machines keep."""
    data, found = arrays(), {}
    # Keras takes objects of one axis only.
    strings = data.x["words"][:, 0]
    for name, words in {"objects": strings, "tensor": tf.constant(strings)}.items():
        keras.utils.set_random_seed(SEED)
        validation = {"words": words[:9]}, data.y[:9]
        found[name] = front.fit(
            {"words": words}, data.y, epochs=4, batch_size=7, validation_data=validation, verbose=0
        ).history
        if front is not model:
            assert str(front.plan()).count("sent once to each machine") == 2
        found[f"predict {name}"] = front.predict({"words": words}, batch_size=7, verbose=0)
    return found


def batches():
    """Batches of 7, 7, 7 and 1 examples of all kinds, made of numbers."""
    data = arrays()

    def kinds(words, y):
        ragged = tf.ragged.map_flat_values(
            lambda lengths: tf.cast(lengths, tf.float64) / 7.0, tf.strings.unicode_decode(words[:, 0], "UTF-8") % 5
        )
        sparse = tf.sparse.from_dense(tf.one_hot(tf.strings.length(words[:, 1]) % 3, 3, dtype=tf.float64))
        return {"words": words, "ragged": ragged, "sparse": sparse}, y

    pairs = tf.data.Dataset.from_tensor_slices((data.x["words"], data.y))
    return untuned(pairs.shuffle(9, seed=3).batch(7).map(kinds).prefetch(1))


def travelling(front, model):
    found = {"fit": front.fit(batches(), epochs=3, validation_data=batches(), verbose=0, shuffle=False).history}
    if front is not model:
        assert ON_MACHINES in str(front.plan()) and FED not in str(front.plan())
    found["evaluate"] = front.evaluate(batches(), verbose=0)
    found["predict"] = front.predict(batches(), verbose=0)
    return found


def test_data_of_all_kinds_trains_as_on_one_device(network):
    for reference, program in ((STRINGS, kept), (ALL, travelling)):
        assert_equal_over_a_pair(network, reference, program, built=False)
