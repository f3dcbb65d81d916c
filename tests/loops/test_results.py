"""What comes back from a marked function: the table of joins, and what is refused."""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.loop_steps import TrainedBy, gradients
from tests.support.loops import Net, assert_equal_loops, autodist, batches, examples, values

JOINED = {
    "rows": lambda x, y: x * 2.0,
    "rows of several axes": lambda x, y: x[:, None, :] * tf.ones([1, 3, 1], tf.float64),
    "a row for each example": lambda x, y: tf.reduce_sum(x, 1),
    "classes": lambda x, y: tf.argmax(x, 1),
    "truth values": lambda x, y: x > 0.0,
    "mean": lambda x, y: tf.reduce_mean(x),
    "mean of a column": lambda x, y: tf.reduce_mean(x, 0),
    "sum": lambda x, y: tf.reduce_sum(x),
    "sum by a number": lambda x, y: tf.reduce_sum(x) / 13.0,
    "sum over sum of sizes": lambda x, y: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], tf.float64),
    "sum and a penalty": lambda x, y: tf.reduce_sum(x) + 3.0,
    "difference of a sum and a mean": lambda x, y: tf.reduce_sum(x) - 2.0 * tf.reduce_mean(x),
    "largest": lambda x, y: tf.reduce_max(x),
    "smallest": lambda x, y: tf.reduce_min(x, 0),
    "sum of integers": lambda x, y: tf.reduce_sum(y),
    "how many": lambda x, y: tf.shape(x)[0],
    "how many are right": lambda x, y: tf.reduce_sum(tf.cast(y == 1, tf.int32)),
    "share that is right": lambda x, y: tf.reduce_mean(tf.cast(y == 1, tf.float64)),
    "whether any is": lambda x, y: tf.reduce_any(x > 2.0),
    "whether all are": lambda x, y: tf.reduce_all(x > -9.0),
    "a constant": lambda x, y: tf.constant([1, 2]),
    "a Python number": lambda x, y: 3,
    "an argument": lambda x, y: x,
    "one loss for each example": lambda x, y: keras.losses.sparse_categorical_crossentropy(y, x, from_logits=True),
    "a structure": lambda x, y: {"rows": (x, [y]), "number": tf.reduce_mean(x)},
    "the sum of squares": lambda x, y: tf.nn.l2_loss(x),
}


def _joined(front: Any) -> Any:
    """All of them as results of one function."""
    marked = front.function(lambda x, y: {name: make(x, y) for name, make in JOINED.items()})
    return [marked(x, y) for x, y in batches(*examples())]


def test_each_result_equals_one_devices():
    assert {name.split("/")[1] for name in assert_equal_loops(_joined)} == JOINED.keys()


def _of_values(front: Any) -> Any:
    """Sums and extremes over the values and the rows of ragged and sparse tensors, and a loss that is such a sum."""
    x, _ = examples()
    lengths = np.arange(len(x)) % 4
    ragged = tf.RaggedTensor.from_row_lengths(np.arange(lengths.sum()) % 7, lengths)
    table = tf.Variable(np.linspace(-1.0, 1.0, 14).reshape(7, 2), name="table")

    @front.function
    def step(ids, numbers):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.gather(table, ids.flat_values) - 0.3) ** 2) + tf.reduce_sum(numbers.values)
        table.assign_sub(0.01 * tf.convert_to_tensor(tape.gradient(loss, table)))
        of_rows = ids.row_lengths(), tf.reduce_sum(ids, axis=1), tf.reduce_max(ids, axis=1), ids.to_tensor()
        sums = tf.reduce_max(numbers.values), tf.reduce_sum(ids.flat_values), tf.reduce_sum(ids)
        return loss, of_rows, sums, tf.sparse.sparse_dense_matmul(numbers, tf.ones([5, 2], tf.float64))

    seen = []
    for first in range(0, len(x), 6):
        last = min(first + 6, len(x))
        seen.append(step(ragged[first:last], tf.sparse.from_dense(x[first:last] * (x[first:last] > 0))))
    return seen, values(table)


UNEQUAL = {
    "a mean": lambda rows: tf.reduce_mean(rows.flat_values),
    "a mean of a part": lambda rows: tf.reduce_mean(
        tf.dynamic_partition(rows.flat_values, tf.cast(rows.flat_values > 1.0, tf.int32), 2)[1]
    ),
    "a sum over their number": lambda rows: tf.reduce_sum(rows) / tf.cast(tf.size(rows.flat_values), tf.float64),
}


@pytest.mark.parametrize("case", UNEQUAL)
def test_a_mean_over_the_values_of_a_ragged_tensor_is_named(case: str):
    rows = tf.ragged.constant([[1.0, 2.0, 3.0], [4.0]], dtype=tf.float64)
    with autodist() as front:
        assert "not exact: result 0 (float64) is the replicas' mean" in front.function(UNEQUAL[case]).plan(rows)


REFUSED = {
    "pairs of examples": (
        lambda x: x @ tf.transpose(x),
        r"result 0 .* float64 of shape .*: it is not known.*a value for each example .the examples along one ax",
    ),
    "an integer of no rule": (lambda x: tf.reduce_max(tf.cast(x, tf.int32)) // 2, r"result 0 .* int32 of shape \(\)"),
    "products of examples": (lambda x: (x, tf.transpose(x) @ x / 2.0 + tf.exp(tf.reduce_sum(x))), "result 1 .*float64"),
    "ragged": (lambda x: tf.RaggedTensor.from_tensor(x), r"returns a RaggedTensor\. .* Return value\.to_tensor\(\)"),
    "an object": (lambda x: {"kept": SimpleNamespace(total=tf.reduce_sum(x))},
                  r"a SimpleNamespace\. .* Return its tensors: in a tuple"),
    "a list of tensors": (lambda x: tf.TensorArray(x.dtype, 1).write(0, x[0]),
                          r"TensorArray.* Return value\.stack\(\)"),
    "sparse": (lambda x: tf.sparse.from_dense(x), r"returns a SparseTensor\. .* Return tf\.sparse\.to_dense\(value\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str):
    function, message = REFUSED[case]
    with autodist() as front, pytest.raises(CaptureError, match=message):
        front.function(function)(np.ones((4, 2)))


def _what_python_sees(front: Any) -> Any:
    return front.function(lambda x: {"none": None, "text": "a", "nested": [(x,)], "number": 2.5})(np.ones((3, 1)))


def test_what_is_no_tensor_comes_back_as_it_is():
    with autodist() as front:
        result = _what_python_sees(front)
    assert result["none"] is None and result["text"] == "a" and float(result["number"]) == 2.5
    assert isinstance(result["nested"][0], tuple) and tf.is_tensor(result["nested"][0][0])


def _counts(net: Net) -> Any:
    optimizer, steps = tf.compat.v1.train.GradientDescentOptimizer(0.1), tf.Variable(0, dtype=tf.int64)

    def step(x, y):
        loss, found = gradients(net, lambda: net.loss(x, y))
        optimizer.apply_gradients(zip(found, net.variables, strict=True), global_step=steps)
        return steps, loss, net.bias, tf.norm(net.out), net(x)

    return step, [steps]


def _sees_old_and_new(net: Net) -> Any:
    def step(x, y):
        before = net.bias + 0.0
        loss, found = gradients(net, lambda: net.loss(x, y))
        net.descend(found)
        return before, net.bias - before, found[1], net.loss(x, y), loss

    return step, []


@pytest.mark.parametrize("loop, strategy", [
    (_of_values, "PS"), (TrainedBy(_counts), "AllReduce"), (TrainedBy(_sees_old_and_new), "PS"),
])  # fmt: skip
def test_the_results_of_a_training_step_equal_one_devices(loop: Any, strategy: str):
    assert_equal_loops(loop, strategy)
