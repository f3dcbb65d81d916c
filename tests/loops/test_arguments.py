"""What can be marked, what a marked function takes - nested batches, whole arrays, variables -, and what is refused."""

from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.loops import Net, assert_equal_loops, autodist, batches, descend, examples, values


def _nested(front: Any) -> Any:
    """Nested arguments, keywords, defaults and flags."""
    net = Net()

    @front.function
    def step(batch, *more, rate=0.1, training, **named):
        (x, y), extra = batch["pair"], named["extra"]
        with tf.GradientTape() as tape:
            loss = net.loss(x + more[0][0] + (extra["shift"] if training else 0.0), y)
        if training:
            net.descend(tape.gradient(loss, net.variables), rate)
        return {"loss": loss, "logits": (net(x), [extra["shift"]])}

    seen = []
    for x, y in batches(*examples()):
        batch, extra = {"pair": (x, y), "name": "a"}, {"shift": 0.1 * x, "none": None}
        seen += [
            step(batch, [x], training=True, extra=extra), step(batch, [x], rate=0.02, training=True, extra=extra),
            step(batch, [x], training=False, extra=extra),
        ]
    return {"seen": seen, "weights": values(net.variables)}


def _arrays(front: Any) -> Any:
    step = front.function(lambda x, factor: (x * factor, tf.reduce_sum(x)))
    return [step(np.arange(6.0).reshape(3, 2), np.float64(2.0)), step(np.ones((2, 2)), tf.constant(3.0, tf.float64))]


def _ragged_and_sparse(front: Any) -> Any:
    net, (x, y) = Net(), examples()
    lengths = np.r_[5, 1 + np.arange(len(x) - 1) % 3]
    inside = np.arange(5) < lengths[:, np.newaxis]
    ragged = tf.RaggedTensor.from_row_lengths(x[inside], lengths)
    sparse = tf.sparse.from_dense(x * (x > 0))
    texts = tf.strings.join([tf.as_string(y), "!"])

    @front.function(whole=["table"])
    def step(batch, table):
        values, numbers, text = batch["ragged"].to_tensor(), batch["sparse"], batch["text"]
        y = tf.strings.to_number(tf.strings.substr(text, 0, 1), tf.int64)
        mask = tf.cast(tf.sequence_mask(batch["ragged"].row_lengths()), values.dtype)
        means = tf.reduce_mean(values * mask, axis=1, keepdims=True)
        loss = net.train(lambda: net.loss(tf.sparse.to_dense(numbers) + means, y))
        return loss, tf.sparse.sparse_dense_matmul(numbers, tf.sparse.to_dense(table)) + means

    seen, table = [], tf.sparse.eye(5, dtype=tf.float64)
    for first, last in ((0, 13), (13, 26), (26, 28)):
        part = tf.sparse.slice(sparse, [first, 0], [last - first, 5])
        seen.append(step({"ragged": ragged[first:last], "sparse": part, "text": texts[first:last]}, table))
    return {"seen": seen, "weights": values(net.variables)}


def _methods(front: Any) -> Any:
    class Trainer:
        def __init__(self, rate):
            self.net, self.rate = Net(), rate

        @front.function
        def step(self, x, y):
            return self.net.train(lambda: self.net.loss(x, y), self.rate)

    trainers = [Trainer(0.1), Trainer(0.02)]
    seen = [[trainer.step(x, y) for trainer in trainers] for x, y in batches(*examples())]
    return {"seen": seen, "weights": [values(trainer.net.variables) for trainer in trainers]}


def _scaled(factor, x):
    return x * factor


class _Halved:
    def __init__(self):
        self.width = tf.constant(3)

    def __call__(self, x):
        if self.width > 2:
            x = x / 2.0
        return x


def _callables(front: Any) -> Any:
    """An object, a partial function, a function of TensorFlow, a model and a lambda."""
    net = Net()

    @tf.function
    def already(x):
        return net(x)

    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    x, _ = examples()
    return [front.function(each)(x) for each in (_Halved(), partial(_scaled, 2.0), already, model, lambda x: x)]


def _whole(front: Any) -> Any:
    net = Net()

    @front.function(whole=["weights", "table"])
    def step(x, y, weights, table=None):
        loss = net.train(lambda: tf.reduce_mean(net.losses(x, y) * tf.gather(weights, y)))
        return loss, weights, tf.gather(table["rows"], y)

    weights, table = np.array([1.0, 0.5, 2.0]), {"rows": np.arange(6.0).reshape(3, 2)}
    seen = [step(x, y, weights, table=table) for x, y in batches(*examples())]
    return {"seen": seen, "weights": values(net.variables)}


def _variables(front: Any) -> Any:
    @front.function
    def add(variable, x):
        variable.assign_add(tf.reduce_sum(x))
        return variable + 0.0

    first, second = (tf.Variable(1.0, dtype=tf.float64, aggregation=tf.VariableAggregation.SUM) for _ in range(2))
    add(first, np.ones(5))
    add(second, np.ones(7))
    return values([first, second])


@pytest.mark.parametrize(("loop", "strategy"), [
    *((loop, "PS") for loop in (_nested, _arrays, _ragged_and_sparse, _methods, _callables, _whole, _variables)),
    (_whole, "AllReduce"),
])  # fmt: skip
def test_what_is_taken_counts_as_on_one_device(loop: Any, strategy: str):
    assert_equal_loops(loop, strategy)


REFUSED = {
    "sizes": (lambda: (np.ones(4), np.ones(3)), r"disagree on the number of examples .*x 4, y 3.*whole=\['name'\]"),
    "dataset": (lambda: (tf.data.Dataset.range(3), 0), "cannot be split .*for batch in dataset: step"),
    "iterator": (lambda: (iter(tf.data.Dataset.range(3)), 0), r"cannot be split .*step\(next\(iterator\)\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str):
    make, message = REFUSED[case]
    weight = tf.Variable(1.0)
    with autodist() as front:

        @front.function
        def step(x, y):
            weight.assign_add(1.0)
            return x

        with pytest.raises(CaptureError, match=message):
            step(*make())
        assert float(weight) == 1.0
        assert step(np.ones(3), np.ones(3)).numpy().tolist() == [1.0, 1.0, 1.0]


def test_a_name_of_no_parameter_is_refused():
    with autodist() as front, pytest.raises(ValueError, match="step has no parameter 'z'"):
        front.function(whole=["z"])(_step)


def _step(x, y):
    return x, y


def test_python_says_what_arguments_are_missing():
    with autodist() as front:
        step = front.function(_step)
        with pytest.raises(TypeError, match="missing a required argument: 'y'"):
            step(np.ones(2))


def test_a_variable_is_an_argument_that_is_trained():
    variables = [tf.Variable([1.0, 1.0], dtype=tf.float64), keras.Variable([1.0, 1.0], dtype="float64")]
    with autodist() as front:

        @front.function
        def step(x, weight):
            return descend(lambda: tf.reduce_mean(tf.linalg.matvec(x, tf.convert_to_tensor(weight))), weight, 0.5)

        for weight in variables:
            assert float(step(np.ones((5, 2)), weight)) == 2.0
            assert weight.numpy().tolist() == [0.5, 0.5]


def test_a_call_without_a_batch_is_not_one_of_one_example(caplog):
    with autodist() as front:
        np.testing.assert_array_equal(front.function(whole=["x"])(lambda x: 2 * x)(np.ones(3)), [2.0, 2.0, 2.0])
        assert "idle" not in caplog.text
        assert front.function(lambda x: 2 * x)(np.ones(1)).shape == (1,)
        assert "A batch of 1 example leaves 1 of 2 replicas idle" in caplog.text


def test_a_tape_around_a_marked_function_is_refused_and_one_beside_it_is_not():
    weight = tf.Variable(np.ones(2))
    with autodist() as front:
        loss = front.function(lambda x: tf.reduce_mean(x * weight))
        x = tf.ones([4, 2], tf.float64)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            beside = tf.reduce_sum(weight**2)
            total = loss(x) + 0.5 * beside
        np.testing.assert_array_equal(tape.gradient(beside, weight), [2.0, 2.0])
        for source in (weight, x):
            with pytest.raises(CaptureError, match="Begin the tape in <lambda>, and call"):
                tape.gradient(total, source)


def test_a_lookup_table_is_used_and_summaries_and_generators_are_refused(tmp_path):
    keys = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2], tf.int64), tf.constant([0.5, 0.25], tf.float64))
    table = tf.lookup.StaticHashTable(keys, 0.0)
    weight = tf.Variable(1.0, dtype=tf.float64)
    with autodist() as front:

        @front.function
        def step(x):
            return descend(lambda: tf.reduce_mean(weight * table.lookup(x)), weight)

        assert float(step(np.array([1, 2, 2, 1]))) == 0.375 and float(weight) == 0.625

        @front.function
        def written(x):
            tf.summary.scalar("mean", tf.reduce_mean(x), step=0)
            return tf.reduce_mean(x)

        with (
            tf.summary.create_file_writer(str(tmp_path)).as_default(),
            pytest.raises(CaptureError, match="Return the value, and write its summary after the call"),
        ):
            written(np.ones(4))
        with pytest.raises(CaptureError, match=r"returns a generator.* Return a list or a tuple of tensors"):
            front.function(lambda x: (each for each in [x]))(np.ones(4))


X = np.arange(10.0).reshape(5, 2)


class Scaled:
    """An object that can be called."""

    factor = 3.0

    def __call__(self, x):
        return self.factor * x


def _of_classes(front):
    class Model:
        factor = 3.0

        @staticmethod
        @front.function
        def of_none(x):
            return 3.0 * x

        @front.function
        @staticmethod
        def of_none_inside(x):
            return 3.0 * x

        @classmethod
        @front.function
        def of_class(cls, x):
            return cls.factor * x

        @front.function(whole=["shift"])
        @classmethod
        def of_class_inside(cls, x, shift=(0.0, 0.0)):
            return cls.factor * x + shift

    names = [name for name in vars(Model) if name.startswith("of_")]
    return [getattr(owner, name) for name in names for owner in (Model, Model())]


def test_each_kind_of_function_runs_over_the_replicas():
    with autodist() as front:
        marked = [
            *_of_classes(front), front.function(lambda x: 3.0 * x), front.function(Scaled()),
            front.function(Scaled().__call__), front.function(partial(lambda factor, x: factor * x, 3.0)),
            front.function(partial(lambda x, of: (x + of) * 1.5, of=X)),
        ]  # fmt: skip
        assert len(marked) == 13
        for function in marked:
            np.testing.assert_array_equal(function(X), 3.0 * X)
        for function in marked[:8]:
            assert "replica localhost:CPU:1" in function.plan(X)


def test_whole_names_keywords_that_the_function_takes_besides():
    with autodist() as front:

        @front.function(whole=["table"])
        def step(x, **named):
            return x * tf.reduce_sum(named["table"]) + named["shift"]

        np.testing.assert_array_equal(step(X, shift=X, table=np.ones(3)), 4.0 * X)
        with pytest.raises(CaptureError, match="disagree on the number of examples"):
            step(X, shift=X, other=np.ones(3), table=np.ones(3))


async def _waits(x):
    return x


def _yields(x):
    yield x


async def _yields_later(x):
    yield x


@pytest.mark.parametrize("function, what", [
    (_waits, "_waits is an `async def` or a generator: it computes after the call"),
    (_yields, "_yields is an `async def` or a generator: it computes after the call"),
    (partial(_yields_later), "partial is an `async def` or a generator: it computes after the call"),
])  # fmt: skip
def test_a_function_that_computes_later_is_refused_where_it_is_marked(function, what: str):
    with autodist() as front, pytest.raises(CaptureError) as found:
        front.function(function)
    assert str(found.value).startswith(what) and "Write a plain `def`" in str(found.value)


def test_what_only_a_tf_function_has_is_refused_in_words():
    with autodist() as front:

        class Model:
            @front.function
            def step(self, x):
                return x

        for function in (Model().step, Model.step):
            with pytest.raises(AttributeError, match=r"has no get_concrete_function, as a tf.function"):
                function.get_concrete_function(tf.TensorSpec([None, 2]))
            with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
                function.no_such_name  # noqa: B018
