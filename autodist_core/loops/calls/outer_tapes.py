"""Refuse the gradient that a tape around a call of a marked function would compute, and leave a trace for a while.

In: the results of a call, and the variables and arguments on which they depend. Out: the same results. A tape that
records now raises an error when it is asked for a gradient of them: the call ran on the replicas, where no tape of the
user's process sees it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import tensorflow as tf

from autodist_core.errors import CaptureError
from autodist_core.seams.table import RESTART_TAPES, STOP_TAPES, TAPE_RECORDS


def without_gradient(name: str, results: Any, made_of: Iterable[Any]) -> Any:
    """The results of the function with this name, whose gradient raises an error.

    >>> weight = tf.Variable(2.0)
    >>> with tf.GradientTape() as tape:
    ...     loss = 3 * without_gradient("step", tf.constant(1.0), [weight])
    >>> tape.gradient(loss, weight)
    Traceback (most recent call last):
    autodist_core.errors.CaptureError: a tape that was begun outside of step ...
    """
    if not TAPE_RECORDS.get()():
        return results
    given = [each for each in made_of if _is_number(each)]
    leaves = tf.nest.flatten(results)
    at = [index for index, leaf in enumerate(leaves) if tf.is_tensor(leaf) and _is_number(leaf)]
    if not given or not at:
        return results

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise CaptureError(
            f"a tape that was begun outside of {name} is asked for a gradient of what {name} returned. The call ran on "
            f"the replicas, and the tape has not seen it. Begin the tape in {name}, and call tape.gradient there."
        )

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def through(*_: Any) -> Any:
        return [tf.identity(leaves[index]) for index in at], refuse

    for index, leaf in zip(at, through(*map(tf.convert_to_tensor, given)), strict=True):
        leaves[index] = leaf
    return tf.nest.pack_sequence_as(results, leaves)


def _is_number(value: Any) -> bool:
    dtype = tf.as_dtype(value.dtype)
    return bool(dtype.is_floating or dtype.is_complex)


@contextmanager
def outside_trace() -> Iterator[None]:
    """Run a block outside of the graphs that are being traced, in the same thread.

    What libraries keep for each thread is there: Keras keeps its dtype policy and its random seeds so.

    >>> x = tf.Variable(3.0)
    >>> @tf.function
    ... def traced():
    ...     with outside_trace():
    ...         with tf.GradientTape() as tape:
    ...             y = x * x
    ...         print(tf.executing_eagerly(), tape.gradient(y, x).numpy())
    >>> traced()
    True 6.0
    """
    with tf.init_scope():
        # The scope stops all tapes, those that begin inside, too.
        RESTART_TAPES.get()()
        try:
            yield
        finally:
            STOP_TAPES.get()()
