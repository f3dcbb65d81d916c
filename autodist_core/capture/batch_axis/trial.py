"""Try the static analysis on a function of one batch. The examples of the rules do.

In: a Python function, and the shape of a batch. Out: one line on the function's results, and the findings:

>>> shown(lambda x: x - tf.reduce_mean(x, axis=0))
'rows along axis 0; Mean gives each example a value of the whole batch'
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from autodist_core.capture.batch_axis.flow import follow
from autodist_core.capture.batch_axis.states.reduced import Extreme, Largest, Linear, Size
from autodist_core.capture.batch_axis.states.state import Ragged, Rows, Sizes, State
from autodist_core.capture.gradients.example import recorded_trace


def shown(function: Callable[[Any], Any], *shape: int | None, dtype: Any = tf.float32) -> str:
    """Return what is known of a function's results for batches of a shape, which is (None, 3) unless it is given.

    >>> shown(lambda x: (tf.reduce_sum(x), tf.shape(x)[0], tf.transpose(x)))
    'a sum over the examples, the number of examples, rows along axis 1'
    """
    traced, _ = recorded_trace(function, shape or (None, 3), dtype)
    found = follow(traced, {})
    notes = [f"{each.operation.type} {each.what}" for each in found.couplings]
    notes += [f"{operation.type} is not decided" for operation, _ in found.undecided]
    return "; ".join([", ".join(map(_words, map(found.state_of, traced.outputs))), *notes])


def _words(state: State) -> str:
    if isinstance(state, Rows):
        return f"rows along {'axis' if len(state.axes) == 1 else 'axes'} {' and '.join(map(str, state.axes))}"
    if isinstance(state, Sizes):
        return f"a shape with the batch size at {state.place}"
    if isinstance(state, Size) and state.degree == 1:
        return "the number of examples" if state.times == 1 else "a multiple of the number of examples"
    if isinstance(state, Linear):
        return {0: "a mean over the examples", 1: "a sum over the examples"}.get(state.degree, "a product of sums")
    if isinstance(state, Extreme):
        return f"the {'largest' if isinstance(state, Largest) else 'smallest'} value over the examples"
    return state.part if isinstance(state, Ragged) else type(state).__name__.lower()
