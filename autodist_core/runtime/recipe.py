"""First values that are not drawn yet: the graph of an initializer, which draws any numbers of the value.

In: a graph whose random numbers come from keys and counters. Out: the value as an array, or operations that draw some
of its numbers. So each machine draws what it owns of a large variable, and nothing of it travels (`transfers.py`).

>>> with tf.Graph().as_default() as graph:
...     ones = tf.fill([3, 2], 1.0)
>>> recipe = Recipe((3, 2), np.dtype("float32"), graph.as_graph_def(), ones.name, (ones.op.inputs[0].name,), {})
>>> recipe.array().tolist(), recipe.nbytes
([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], 0)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.runtime.equal_arrays import is_zero
from autodist_core.runtime.recovery.on_disk import Away, fill, room

_PART = 1 << 24
"""How many numbers an array is filled with at a time."""
_AS_IT_IS = tf.compat.v1.ConfigProto()
_AS_IT_IS.graph_options.rewrite_options.disable_meta_optimizer = True


@dataclass(frozen=True, eq=False)
class Recipe(Away):
    """A value of at least one number that can be drawn in parts. The module has an example."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    graph: Any
    """The GraphDef."""
    output: str
    sizes: tuple[str, ...]
    """The tensors that have the value's shape."""
    counters: Mapping[str, tuple[np.ndarray, int]]
    """The tensors that have counters: their values, and how much they grow with 16 bytes of numbers."""
    least_bytes = 1 << 22
    """The least bytes of a value that is a recipe: to make one and to draw by it takes some milliseconds."""

    def rows(self, low: int, high: int) -> tuple[dict[Any, Any], Any]:
        """Draw some rows in the present graph: what to feed for that, and the rows.

        What is fed could be constants, but TensorFlow would put the numbers into the graph that it sends.
        """
        width = math.prod(self.shape[1:])
        blocks, skipped = divmod(low * width * self.dtype.itemsize, 16)
        skipped, count = skipped // self.dtype.itemsize, (high - low) * width
        drawn = tf.compat.v1.placeholder(tf.int32, ())
        counters = {name: tf.compat.v1.placeholder(tf.uint64, (2,)) for name in self.counters}
        feeds = {counters[name]: _further(first, blocks * step) for name, (first, step) in self.counters.items()}
        inputs = dict.fromkeys(self.sizes, tf.stack([drawn] + [1] * (len(self.shape) - 1))) | counters
        [output] = tf.graph_util.import_graph_def(self.graph, inputs, [self.output], name="drawn")
        numbers = tf.reshape(output, [-1])[skipped:] if skipped else output
        return feeds | {drawn: skipped + count}, tf.reshape(numbers, [high - low, *self.shape[1:]])

    def array(self, at_once: int | None = None) -> np.ndarray:
        """The value, on the disk if it is huge. About so many numbers are drawn `at_once`."""
        value = room(self.shape, self.dtype)
        at_a_time = max(1, (at_once or _PART) * self.shape[0] // value.size)
        for low in range(0, self.shape[0], at_a_time):
            part = value[low : low + at_a_time]
            with tf.Graph().as_default() as graph, tf.device("/device:CPU:0"):
                feeds, rows = self.rows(low, low + len(part))
            with tf.compat.v1.Session(graph=graph, config=_AS_IT_IS) as session:
                fill(part, session.run(rows, feeds))
        value.flags.writeable = False
        return value


def of_zeros(value: Away | np.ndarray) -> Recipe | None:
    """The recipe of a large array of zeros, as an optimizer's slots are at first; None for any other value.

    >>> of_zeros(np.zeros((1 << 10, 1 << 10), "float32")).array()[0, :2].tolist(), of_zeros(np.zeros(3))
    ([0.0, 0.0], None)
    """
    if isinstance(value, Away) or value.nbytes < Recipe.least_bytes or value.dtype.kind != "f" or not is_zero(value):
        return None
    with tf.Graph().as_default() as graph:
        zeros = tf.fill(value.shape, value.dtype.type(0))
    return Recipe(value.shape, value.dtype, graph.as_graph_def(), zeros.name, (zeros.op.inputs[0].name,), {})


def _further(counter: np.ndarray, by: int) -> np.ndarray:
    low, high = (int(half) for half in counter)
    number = low + (high << 64) + by
    return np.array([number % (1 << 64), (number >> 64) % (1 << 64)], "uint64")
