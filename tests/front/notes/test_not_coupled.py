"""Ordinary layers, losses and metrics treat examples one by one, and the analysis sees it.

Behind each of them stands one layer that subtracts the batch's mean: that alone is named, so nothing else is, and the
batch axis was not lost on the way.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.front.notes.models import centred
from tests.support.layers import Does
from tests.support.plans import as_name, notes_of, numbers, operations

dense, flat = layers.Dense, layers.Flatten
SEQUENCES, IMAGES, FEATURES = numbers(6, 4), numbers(12, 12, 3), numbers(5)
WORDS = np.random.default_rng(4).integers(1, 9, (8, 6)).astype("int32")
WORDS[:3, 4:] = 0
STRINGS = tf.constant(["a b", "c", "d e f", "a a"] * 2)
LABELS, TARGETS = np.arange(8) % 3, numbers(1)


class FirstToken(layers.Layer):
    """Puts a token of its own before each sequence and hands on what became of it."""

    def build(self, shape):
        self.token = self.add_weight(shape=(1, 1, shape[-1]), name="token")

    def call(self, x):
        return ops.concatenate([ops.tile(self.token, [ops.shape(x)[0], 1, 1]), x], axis=1)[:, 0]


class Views(layers.Layer):
    """Two views of each example through one layer, one behind the other along the batch axis."""

    def build(self, shape):
        self.shared = dense(3)
        self.shared.build(shape)

    def call(self, x):
        both = self.shared(tf.concat([x, 0.5 * x], 0))
        first, second = tf.split(both, 2, axis=0)
        return first * second + both[: tf.shape(x)[0]]


def _attention(x):
    return flat()(layers.MultiHeadAttention(2, 3)(x, x))


def _masked_attention(x):
    embedded = layers.Embedding(9, 4, mask_zero=True)(x)
    return layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 3)(embedded, embedded, use_causal_mask=True))


def _vision(x):
    patches = layers.Reshape((9, 8))(layers.Conv2D(8, 4, 4)(x))
    normal = layers.LayerNormalization()(patches)
    return layers.GlobalAveragePooling1D()(patches + layers.MultiHeadAttention(2, 4)(normal, normal))


def _encoded(x):
    attended = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    return attended + dense(4, activation="gelu")(attended)


def _asserted(x):
    tf.debugging.assert_near(x, 1.0 * x)
    tf.debugging.Assert(tf.reduce_mean(x) < 9, [x])
    with tf.control_dependencies([tf.debugging.assert_less(x, abs(x) + 1)]):
        return tf.identity(x)


def _spread(number, x):
    return tf.broadcast_to(number, tf.shape(x))


def _chain(*parts):
    def run(x):
        for part in parts:
            x = part(x)
        return x

    return run


def _merged(x):
    return flat()(ops.reshape(dense(2)(ops.reshape(x, (-1, 4))), (-1, 6, 2)))


class Confusion(keras.metrics.Metric):
    """Counts the classes with TensorFlow's confusion matrix, which asserts that all labels are classes."""

    def __init__(self):
        super().__init__(name="confusion")
        self.counts = self.add_weight(shape=(3, 3), initializer="zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        counts = tf.math.confusion_matrix(tf.argmax(y_true, -1), tf.argmax(y_pred, -1), 3)
        self.counts.assign_add(tf.cast(counts, self.counts.dtype))

    def result(self):
        return ops.trace(self.counts)


LAYERS = {
    "attention": (SEQUENCES, _attention),
    "masked attention": (WORDS, _masked_attention),
    "additive attention": (SEQUENCES, lambda x: flat()(layers.AdditiveAttention()([x, x]))),
    "vision transformer": (IMAGES, _vision),
    "dense in a sequence": (WORDS, lambda x: _chain(layers.Embedding(9, 4), dense(3, activation="silu"), flat())(x)),
    "transformer": (WORDS, lambda x: layers.GlobalMaxPooling1D()(_encoded(layers.Embedding(9, 4, mask_zero=True)(x)))),
    "normalization": (SEQUENCES, lambda x: _chain(layers.LayerNormalization(), layers.GroupNormalization(2),
                                                  layers.UnitNormalization(), flat())(x)),
    "batch normalization": (IMAGES, lambda x: _chain(layers.Conv2D(4, 3), layers.BatchNormalization(), flat())(x)),
    "renormalization": (FEATURES, lambda x: _chain(dense(4), layers.BatchNormalization(renorm=True))(x)),
    "synchronized": (FEATURES, lambda x: _chain(dense(4), layers.BatchNormalization(synchronized=True))(x)),
    "softmax": (FEATURES, lambda x: _chain(dense(4), layers.Softmax())(x)),
    "spectrum": (SEQUENCES, lambda x: flat()(layers.Lambda(
        lambda t: tf.abs(tf.signal.stft(tf.transpose(t, (0, 2, 1)), 3, 1, 4)[..., 0]))(x))),
    "spectrum in three axes": (IMAGES, lambda x: flat()(layers.Lambda(
        lambda t: tf.math.real(tf.signal.fft3d(tf.cast(t, tf.complex128))))(x))),
    "gru": (SEQUENCES, lambda x: _chain(layers.GRU(3, return_sequences=True), layers.GRU(3, go_backwards=True))(x)),
    "lstm": (SEQUENCES, lambda x: _chain(layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
                                         layers.LSTM(3))(x)),
    "masked lstm": (WORDS, lambda x: _chain(layers.Embedding(9, 4, mask_zero=True), layers.LSTM(3))(x)),
    "time distributed": (SEQUENCES, lambda x: _chain(layers.TimeDistributed(dense(3)),
                                                     layers.GlobalMaxPooling1D())(x)),
    "batch and time merged": (SEQUENCES, _merged),
    "pooling": (IMAGES, lambda x: _chain(layers.Conv2D(4, 3), layers.MaxPooling2D(), layers.SeparableConv2D(4, 3),
                                         layers.AveragePooling2D(2), layers.GlobalAveragePooling2D())(x)),
    "dilation": (IMAGES, lambda x: _chain(layers.Conv2D(4, 3, dilation_rate=2), layers.UpSampling2D(),
                                          layers.Conv2DTranspose(2, 3, strides=2), layers.ZeroPadding2D(),
                                          layers.DepthwiseConv2D(3), flat())(x)),
    "regularizers": (FEATURES, lambda x: _chain(dense(4, kernel_regularizer="l2", activity_regularizer="l1"),
                                                layers.ActivityRegularization(0.1))(x)),
    "first token": (SEQUENCES, lambda x: FirstToken()(x)),
    "two views": (FEATURES, lambda x: Views()(x)),
    "dot": (SEQUENCES, lambda x: flat()(layers.Dot(axes=(2, 2))([x, x]))),
    "einsum": (SEQUENCES, lambda x: flat()(layers.EinsumDense("abc,cd->abd", output_shape=(6, 3))(x))),
    "along features": (FEATURES, lambda x: ops.sort(ops.cumsum(ops.flip(x, 1), axis=1)) + ops.roll(x, 1, axis=1)),
    "map": (SEQUENCES, lambda x: layers.Lambda(lambda t: tf.map_fn(lambda row: tf.reduce_max(row, 0), t),
                                               output_shape=(4,))(x)),
    "assertions": (FEATURES, lambda x: layers.Lambda(_asserted, output_shape=(5,))(x)),
    "sparse of dense": (FEATURES, lambda x: layers.Lambda(
        lambda t: tf.sparse.sparse_dense_matmul(tf.sparse.from_dense(t), tf.ones((5, 2), t.dtype)),
        output_shape=(2,))(x)),
    "scaled and back": (FEATURES, lambda x: layers.Lambda(
        lambda t: t * _spread(1 / tf.cast(tf.shape(t)[0], t.dtype), t) * tf.cast(tf.shape(t)[0], t.dtype))(x)),
    "gather in each": (SEQUENCES, lambda x: layers.Lambda(
        lambda t: tf.gather(t, tf.argmax(t[:, :, 0], 1), axis=1, batch_dims=1), output_shape=(4,))(x)),
}  # fmt: skip


def _behind(made):
    """One output of all that was made, each of it behind a layer that subtracts the batch's mean."""
    behind = [Does(centred, f"behind_{as_name(name)}")(x) for name, x in made.items()]
    return dense(1, name="out")(layers.Concatenate()(behind))


def _require_those_behind(names, notes):
    found = operations(notes, r"not exact: in layer 'behind_(?P<owner>\w+)', ")
    assert found == dict.fromkeys(map(as_name, names), "Mean") and len(notes) == len(found)


def _require_centred_alone(notes):
    assert [note.partition(",")[0] for note in notes] == ["not exact: in layer 'centred'"], notes


def test_layers():
    """All of them side by side in one model of four inputs, so that one plan names what is behind each of them."""
    given = [SEQUENCES, IMAGES, FEATURES, WORDS]

    def build():
        inputs = {id(part): keras.Input(part.shape[1:], dtype=part.dtype) for part in given}
        made = {name: run(inputs[id(x)]) for name, (x, run) in LAYERS.items()}
        made["two inputs"] = layers.Concatenate()([inputs[id(FEATURES)], flat()(inputs[id(SEQUENCES)])])
        return keras.Model(list(inputs.values()), _behind(made))

    _require_those_behind([*LAYERS, "two inputs"], notes_of(build, given, TARGETS))


def test_layers_of_images_in_float32():
    """Keras transforms images in float32 only."""
    keras.config.set_dtype_policy("float32")
    augmentation = _chain(
        layers.RandomFlip(), layers.RandomZoom(0.1), layers.RandomContrast(0.1), layers.RandomTranslation(0.1, 0.1),
        layers.RandomCrop(10, 10), flat(),
    )  # fmt: skip

    def build():
        x = keras.Input(IMAGES.shape[1:])
        return keras.Model(x, _behind({"augmentation": augmentation(x)}))

    _require_those_behind(["augmentation"], notes_of(build, IMAGES, TARGETS))


def test_sequences_of_unknown_length():
    def build():
        x = keras.Input((None,), dtype="int32")
        hidden = layers.GlobalMaxPooling1D()(_encoded(layers.Embedding(9, 4, mask_zero=True)(x)))
        return keras.Model(x, dense(1, name="out")(Does(centred, "centred")(hidden)))

    _require_centred_alone(notes_of(build, WORDS, TARGETS))


LOSSES = {
    "sparse": "sparse_categorical_crossentropy",
    "gathered": lambda y, p: -tf.gather_nd(
        tf.math.log(p), tf.stack([tf.range(tf.shape(p)[0]), tf.cast(y, tf.int32)], 1)),
    "taken": lambda y, p: -ops.take_along_axis(ops.log(p), ops.cast(y, "int32")[:, None], axis=1)[:, 0],
    "ctc": lambda y, p: tf.nn.ctc_loss(
        tf.cast(y, tf.int32)[:, None], tf.cast(p, tf.float32)[:, None], tf.ones_like(y, tf.int32),
        tf.ones_like(y, tf.int32), logits_time_major=False),
    "binned": lambda y, p: tf.gather(
        tf.constant([1, 2, 4], p.dtype), tf.searchsorted(tf.constant([0.5, 1.5], p.dtype), tf.cast(y, p.dtype))
    ) * tf.square(p[:, 0]),
    "chosen": lambda y, p: tf.where(p[:, 0] < 1, tf.square(p[:, 0]), tf.abs(p[:, 0])),
}  # fmt: skip


def _headed(names):
    def build():
        hidden = Does(centred, "centred")(dense(4)(x := keras.Input((5,))))
        return keras.Model(x, {name: dense(3, activation="softmax", name=name)(hidden) for name in names})

    return build


def test_losses_of_labels():
    labels, metrics = dict.fromkeys(LOSSES, LABELS), {name: ["accuracy"] for name in LOSSES}
    _require_centred_alone(notes_of(_headed(LOSSES), FEATURES, labels, loss=LOSSES, weighted_metrics=metrics))


def test_stock_losses_and_metrics():
    names = ["categorical_crossentropy", "kl_divergence", "huber", "cosine_similarity", "log_cosh", "poisson",
             "categorical_hinge", keras.losses.CategoricalFocalCrossentropy(),
             keras.losses.MeanSquaredError("sum"), keras.losses.MeanAbsoluteError(None)]  # fmt: skip
    keys = [f"output_{index}" for index in range(len(names))]

    targets = np.eye(3)[LABELS]
    metrics = keras.metrics
    made = [
        metrics.AUC(num_thresholds=5), metrics.AUC(num_thresholds=5, multi_label=True, num_labels=3),
        metrics.Precision(), metrics.Recall(), metrics.F1Score(), metrics.OneHotMeanIoU(3), metrics.R2Score(),
        metrics.RootMeanSquaredError(), metrics.CosineSimilarity(),
        metrics.SensitivityAtSpecificity(0.5), metrics.CategoricalAccuracy(), metrics.Poisson(), Confusion(),
    ]  # fmt: skip
    losses = dict(zip(keys, names, strict=True))
    notes = notes_of(_headed(keys), FEATURES, dict.fromkeys(keys, targets), loss=losses, metrics={keys[0]: made})
    _require_centred_alone(notes)


def _text(**settings):
    layer = layers.TextVectorization(max_tokens=9, **settings)
    layer.adapt(["a b c", "d e f"])
    return layer


TEXTS = {
    "words": lambda x: layers.Flatten()(layers.Embedding(9, 3)(_text(output_sequence_length=4)(x))),
    "words of any number": lambda x: layers.GlobalMaxPooling1D()(layers.Embedding(9, 3)(_text()(x))),
    "letters": lambda x: layers.Flatten()(
        layers.Embedding(9, 3)(_text(split="character", output_sequence_length=4)(x))),
    "which words": lambda x: _text(output_mode="multi_hot")(x),
    "pairs of words": lambda x: _text(output_mode="tf_idf", ngrams=2)(x),
    "crossed": lambda x: layers.Embedding(8, 3)(layers.HashedCrossing(8)((x, x))),
    "crossed, encoded": lambda x: layers.HashedCrossing(8, output_mode="one_hot")((x, x)),
}  # fmt: skip


def test_text_layers_treat_examples_one_by_one():
    def build():
        x = keras.Input((), dtype="string")
        return keras.Model(x, _behind({name: make(x) for name, make in TEXTS.items()}))

    _require_those_behind(TEXTS, notes_of(build, STRINGS, TARGETS))


def test_what_adds_up_the_words_of_texts_is_not_known():
    class Words(layers.Layer):
        def call(self, x):
            split = tf.strings.split(x)
            letters = tf.reduce_sum(tf.strings.length(split.values))
            return tf.cast(letters, "float64") * tf.ones((tf.shape(x)[0], 1), "float64")

        def compute_output_spec(self, x):
            return keras.KerasTensor((None, 1), "float64")

    def build():
        x = keras.Input((), dtype="string")
        return keras.Model(x, layers.Dense(1)(Words(name="words")(x)))

    notes = notes_of(build, STRINGS, TARGETS)
    assert notes and "'words'" in notes[0]
