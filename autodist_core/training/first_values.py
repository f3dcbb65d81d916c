"""Variables that wait for a value: of a model that is only planned, or that is larger than the memory of the program.

In: a variable without memory, and a function that makes its value. Out: the value, when somebody looks at the variable,
or when a session is about to get it. The session keeps large values on disk, so that one is in memory at a time.

>>> variable = without_value((2,), "float32", lambda: [1.0, 1.0])
>>> entry = Entry(Variable("w", (2,), "float32"), variable)
>>> entry.first_value().tolist()
[1.0, 1.0]
>>> float(tf.reduce_sum(variable)), entry.first_value() is None
(2.0, True)
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.log import log
from autodist_core.runtime.recovery.on_disk import OnDisk, array_of
from autodist_core.seams.table import WITHOUT_VALUE
from autodist_core.step.graph_item import Variable
from autodist_core.training.entries import Entry, has_value, part_of
from autodist_core.training.watching import Subscription, Watcher, stop_waiting, watch


def without_value(shape: tuple[int, ...], dtype: str, make: Callable[[], Any], **options: Any) -> Any:
    """Make a TensorFlow variable without memory; `make` makes its first value. The module has an example.

    >>> import gc, weakref
    >>> variable = without_value((2,), "float32", lambda: [1.0, 1.0])
    >>> found = weakref.ref(variable)
    >>> del variable
    >>> _ = gc.collect()
    >>> found() is None
    True
    """
    with tf.init_scope():
        variable = WITHOUT_VALUE.get()(shape=shape, dtype=dtype, **options)
    entry = Entry(Variable(variable.name, shape, dtype), variable)
    entry.free()
    wait_for(entry, make)
    return variable


def wait_for(entry: Entry, make: Callable[[], Any]) -> None:
    """Let a freed variable wait for its value, which `make` makes.

    >>> variable = tf.Variable([1.0, 2.0])
    >>> entry = Entry(Variable("w", (2,), "float32"), variable)
    >>> entry.free()
    >>> wait_for(entry, lambda: [3.0, 4.0])
    >>> variable.numpy().tolist()
    [3.0, 4.0]
    """
    entry.tf_variable.make_first_value = make
    watch(Subscription(_Waiting(copies=False), entry))


def wait_with(entry: Entry, kept: Any) -> None:
    """Let a freed variable wait with the value that it has, as it is kept.

    >>> variable = tf.Variable([1.0, 2.0])
    >>> entry = Entry(Variable("w", (2,), "float32"), variable)
    >>> entry.free()
    >>> wait_with(entry, np.array([3.0, 4.0]))
    >>> tf.gather(variable, [1]).numpy().tolist()
    [4.0]
    """
    entry.tf_variable.make_first_value = lambda: kept
    watch(Subscription(_Waiting(copies=True), entry))


def wait_again(entry: Entry | None) -> None:
    """Let a variable wait on, if it still has no value when a watcher has gone.

    >>> variable = without_value((2,), "float32", lambda: [5.0, 6.0])
    >>> entry = Entry(Variable("w", (2,), "float32"), variable)
    >>> stop_waiting(entry)
    >>> wait_again(entry)
    >>> variable.numpy().tolist()
    [5.0, 6.0]
    """
    make = None if entry is None else vars(entry.tf_variable).get("make_first_value")
    if entry is not None and make is not None:
        wait_for(entry, make)


_ON_DISK = OnDisk()
"""The values that were assigned to variables without one."""


class _Waiting(Watcher):
    """Makes the value when somebody looks. A state that watches the variable takes its place."""

    waits = True

    def __init__(self, copies: bool) -> None:
        self._copies = copies
        self._lock = threading.RLock()

    def looked_at(self, entry: Entry) -> None:
        with self._lock:  # another thread may be making the value, and this one may be about to write another
            entry.make_value()
            stop_waiting(entry)

    def copy_of(self, entry: Entry, rows: np.ndarray | None = None) -> np.ndarray | None:
        value = entry.first_value() if self._copies else None
        return None if value is None else part_of(array_of(value), rows)

    def takes(self, entry: Entry, value: Any) -> bool:
        if not entry.fits(value) or has_value(entry.tf_variable):
            return False
        kept = _ON_DISK.keep(np.asarray(value, entry.tf_variable.dtype.as_numpy_dtype))
        with self._lock:
            entry.tf_variable.make_first_value, self._copies = lambda: kept, True
        return True

    def iterated(self, entry: Entry, iterator: Any) -> None:
        self.looked_at(entry)

    def failed(self, failure: BaseException) -> None:
        log.error("a variable that waited for its value got none: %s", failure)

    def covered(self, entry: Entry) -> None:
        return  # a watcher that is put behind this one takes its place

    def give_way(self, entry: Entry) -> None:
        return
