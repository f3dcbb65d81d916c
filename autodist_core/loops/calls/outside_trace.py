"""Leave a trace for a while, in the same thread.

In: a function that is being traced. Out: a block that runs as if nothing were traced. What libraries keep for each
thread is there: Keras keeps its dtype policy and its random seeds so.

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

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from autodist_core.seams.table import RESTART_TAPES, STOP_TAPES


@contextmanager
def outside_trace() -> Iterator[None]:
    """Run a block outside of the graphs that are being traced. The module has an example."""
    with tf.init_scope():
        # The scope stops all tapes, those that begin inside, too.
        RESTART_TAPES.get()()
        try:
            yield
        finally:
            STOP_TAPES.get()()
