"""Other models than the reference ones: attention, layers used twice, models in models, depth, mixed precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.compare import named
from tests.support.models import BATCH, DENSE, TWICE, Data, ReferenceModel, dense_data, dense_model, even_data
from tests.support.models import MODELS as PLAIN
from tests.support.training import QUIET, assert_equal_training, assert_same_numbers

layers = keras.layers
EXAMPLES = 3 * BATCH
"""Of batches of one size, which need one graph. The reference models have a last batch of another one."""


def _random() -> np.random.Generator:
    return np.random.default_rng(11)


def _sequences() -> Data:
    x = _random().normal(size=(EXAMPLES, 4, 6))
    return Data(x, np.sin(x.sum(axis=(1, 2)))[:, None], np.linspace(0.3, 2.0, EXAMPLES))


def _attention() -> keras.Model:
    """A transformer's block. Without biases: that of the keys has no gradient but rounding."""
    x = keras.Input((4, 6), name="x")
    attended = layers.MultiHeadAttention(2, 3, use_bias=False, name="attention")(x, x)
    hidden = layers.LayerNormalization(name="norm")(layers.Add(name="add")([x, attended]))
    hidden = layers.GlobalAveragePooling1D(name="pool")(layers.Dense(5, activation="gelu", name="wide")(hidden))
    return keras.Model(x, layers.Dense(1, name="out")(hidden), name="attention_model")


def _tied() -> keras.Model:
    """One layer used twice in the forward pass, and its kernel once more, transposed."""
    x = keras.Input((5,), name="x")
    shared = layers.Dense(5, activation="tanh", name="shared")
    hidden = shared(layers.Dense(5, activation="tanh", name="between")(shared(x)))
    return keras.Model(x, layers.Dense(1, name="out")(hidden), name="tied")


def _tied_table() -> keras.Model:
    """A table of embeddings that is looked up and, transposed, makes the logits: a sparse and a dense gradient."""
    ids = keras.Input((3,), dtype="int32", name="ids")
    table = layers.ReversibleEmbedding(9, 4, name="table")
    hidden = layers.Dense(4, activation="tanh", name="hidden")(layers.GlobalAveragePooling1D(name="pool")(table(ids)))
    return keras.Model(ids, table(hidden, reverse=True), name="tied_table")


def _ids() -> Data:
    random = _random()
    return Data(random.integers(0, 9, (EXAMPLES, 3)).astype("int32"), random.integers(0, 9, EXAMPLES))


def _nested() -> keras.Model:
    """A model as a layer, used twice, beside another."""
    x = keras.Input((5,), name="x")
    inner = keras.Sequential([keras.Input((5,)), layers.Dense(5, activation="tanh", name="a")], name="inner")
    outer = dense_model("other")
    return keras.Model(x, layers.Dense(1, name="out")(layers.Concatenate(name="all")([inner(inner(x)), outer(x)])))


def _deep() -> keras.Model:
    """Many small layers, each beside a way around it."""
    x = hidden = keras.Input((5,), name="x")
    for index in range(8):
        hidden = layers.Add()([hidden, layers.Dense(5, activation="tanh", name=f"dense_{index}")(hidden)])
    return keras.Model(x, layers.Dense(1, name="out")(hidden), name="deep")


def _normalized() -> keras.Model:
    """Normalizations whose statistics are each example's own."""
    image = keras.Input((4, 4, 4), name="image")
    hidden = layers.Conv2D(4, 2, activation="tanh", name="conv")(image)
    hidden = layers.GroupNormalization(2, name="group")(hidden)
    hidden = layers.RMSNormalization(name="rms")(layers.LayerNormalization(name="layer")(hidden))
    return keras.Model(image, layers.Dense(1, name="out")(layers.Flatten(name="flat")(hidden)), name="normalized")


def _images() -> Data:
    x = _random().normal(size=(EXAMPLES, 4, 4, 4))
    return Data(x, np.cos(x.sum(axis=(1, 2, 3)))[:, None])


def _mixed_heads() -> keras.Model:
    """Integers and floats in; two outputs, each with a loss and a weight of its own."""
    ids, x = keras.Input((3,), dtype="int32", name="ids"), keras.Input((5,), name="x")
    rows = layers.Flatten(name="flat")(layers.Embedding(9, 3, name="table")(ids))
    hidden = layers.Dense(6, activation="tanh", name="hidden")(layers.Concatenate(name="all")([rows, x]))
    outputs = {"value": layers.Dense(1, name="value")(hidden),
               "kind": layers.Dense(9, activation="softmax", name="kind")(hidden)}  # fmt: skip
    return keras.Model({"ids": ids, "x": x}, outputs, name="mixed_heads")


def _mixed_data() -> Data:
    ids, dense = _ids(), even_data()
    return Data({"ids": ids.x, "x": dense.x}, {"value": dense.y, "kind": ids.y})


def _heads_settings() -> dict:
    return {"loss": {"value": "mae", "kind": "sparse_categorical_crossentropy"},
            "loss_weights": {"value": 0.3, "kind": 2.0},
            "metrics": {"value": ["mse"], "kind": ["accuracy"]}}  # fmt: skip


class _Squares(layers.Layer):
    """A layer with a kernel; how it computes is the subclasses'."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), name="kernel")

    def compute_output_shape(self, shape):
        return shape


class InFunction(_Squares):
    """Forward and backward are calls of functions."""

    @tf.function
    def call(self, x):
        return tf.tanh(x @ self.kernel)


class OwnGradient(_Squares):
    """The gradient of a tenth of the size, by hand."""

    def call(self, x):
        @tf.custom_gradient
        def times_kernel(x):
            def backward(upstream, variables):
                assert len(variables) == 1
                return 0.1 * upstream @ tf.transpose(self.kernel), [0.1 * tf.transpose(x) @ upstream]

            return x @ self.kernel, backward

        return tf.tanh(times_kernel(x))


class Recomputed(_Squares):
    """What is inside is computed once more for its gradient."""

    def call(self, x):
        return keras.remat(lambda x: tf.tanh(x @ self.kernel))(x)


def _own_gradients() -> keras.Model:
    """Gradients that TensorFlow makes otherwise than operation by operation."""
    x = hidden = keras.Input((5,), name="x")
    for layer in (InFunction(name="function"), OwnGradient(name="gradient"), Recomputed(name="recomputed")):
        hidden = layer(hidden)
    return keras.Model(x, layers.Dense(1, name="out")(hidden), name="own_gradients")


def _mse() -> dict:
    return {"loss": "mse", "metrics": ["mae"]}


def _logits() -> dict:
    return {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}


MODELS = {
    model.name: model
    for model in (
        ReferenceModel("attention", _attention, _sequences, _mse),
        ReferenceModel("tied", _tied, even_data, _mse),
        ReferenceModel("tied_table", _tied_table, _ids, _logits),
        ReferenceModel("nested", _nested, even_data, _mse),
        ReferenceModel("deep", _deep, even_data, _mse),
        ReferenceModel("normalized", _normalized, _images, _mse),
        ReferenceModel("own_gradients", _own_gradients, even_data, _mse),
        ReferenceModel("mixed_heads", _mixed_heads, _mixed_data, _heads_settings),
    )
}


@pytest.mark.quick("attention-2-True-AllReduce", "normalized-2-True-AllReduce", "own_gradients-2-True-AllReduce")
@pytest.mark.parametrize("replicas, share_memory, builder", [(2, True, "AllReduce"), (3, False, "Parallax")])
@pytest.mark.parametrize("name", MODELS)
def test_equals_one_device(name: str, replicas: int, share_memory: bool, builder: str):
    assert_equal_training(MODELS[name], strategy=builder, replicas=replicas, share_memory=share_memory)


def test_two_models_that_share_layers_and_an_optimizer():
    """In turns, each through a front of its own; between two turns the state is the models'."""

    def program(front_of) -> dict[str, np.ndarray]:
        keras.utils.set_random_seed(3)
        x = keras.Input((5,), name="x")
        hidden = layers.Dense(6, activation="tanh", name="hidden")(x)
        models = [keras.Model(x, layers.Dense(1, name=name)(hidden), name=name) for name in ("left", "right")]
        optimizer, data, losses = keras.optimizers.Adam(0.01, name="adam"), even_data(), []
        optimizer.build([*models[0].trainable_variables, *models[1].trainable_variables[2:]])
        for model, loss in zip(models, ("mse", "mae"), strict=True):
            model.compile(optimizer, loss, jit_compile=False)
        fronts = [front_of(model) for model in models]
        for front in fronts * 2:
            losses.append(front.fit(data.x, data.y, **QUIET).history["loss"])
        variables = [*models[0].weights, *models[1].weights[2:], *optimizer.variables]
        return {"losses": np.asarray(losses), **named(variables)}

    assert_same_numbers(program, replicas=3)


MIXED = [("mixed_bfloat16", False, 4e-2), ("mixed_float16", True, 4e-3)]


@pytest.mark.quick("mixed_float16-True-0.004-False")
@pytest.mark.parametrize("share_memory", [True, False])
@pytest.mark.parametrize("policy, overflow, tolerance", MIXED)
def test_mixed_precision(policy: str, overflow: bool, tolerance: float, share_memory: bool):
    """Weights to the rounding of half precision; how often the optimizer stepped, and the loss's scale, exactly."""
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy(policy)
    data, scaling = dense_data(), []
    x, y = data.x.astype("float32"), data.y.astype("float32")
    if overflow:
        x[12] = 7e4  # in the last replica's part of the second batch, and past what float16 can hold

    def program(front, model):
        front.fit(x, y, epochs=2, **QUIET)
        scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        assert scaled == (policy == "mixed_float16")
        inner = model.optimizer.inner_optimizer if scaled else model.optimizer
        scaling.append((int(inner.iterations), float(model.optimizer.dynamic_scale) if scaled else 1.0))
        return {}

    assert_equal_training(DENSE, program, replicas=3, share_memory=share_memory, tolerance=tolerance)
    assert scaling[0] == scaling[1]
    assert scaling[0][0] == (6 if overflow else 8)


# Loops, weights of two layers, tables that are also read whole, conditionals, recomputation, updates by turns.
CASES = {model.name: model for model in (*PLAIN, *TWICE, *MODELS.values()) if model.name != "deep"}


@pytest.mark.quick("tied_table-sgd-2", "adversarial-adam-3")
@pytest.mark.parametrize(
    ("name", "optimizer", "replicas"),
    [(name, *(("sgd", 2), ("adam", 3))[turn % 2]) for turn, name in enumerate(CASES)],
)
def test_gathered_weights_equal_those_of_one_device(name: str, optimizer: str, replicas: int):
    assert_equal_training(CASES[name], optimizer=optimizer, strategy="Gathered", replicas=replicas)


@pytest.mark.parametrize("name", ["dense", "lstm", "adversarial", "attention", "tied_table", "own_gradients"])
def test_weights_that_are_kept_for_some_uses_equal_those_of_one_device(name: str):
    assert_equal_training(CASES[name], optimizer="adam", strategy="KeptForSome", replicas=2)
