"""The variables of a training: each with its name and properties in a captured step, and the TensorFlow variable.

In: what a front knows of its variables. Out: an `Entry` for each. The capture, the plan and `TrainingState` use them.

>>> entry = Entry(Variable("w", (2,), "float32"), tf.Variable([1.0, 2.0]))
>>> entry.write(3 * entry.read())
>>> entry.tf_variable.numpy().tolist()
[3.0, 6.0]
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.runtime.large_reads import WITHOUT_KERNELS
from autodist_core.runtime.recovery.on_disk import Away, array_of
from autodist_core.step.graph_item import Variable

_SMALL_BYTES = 4096
"""Variables of at most this size are read together."""
_NOTHING = (0,) * 10
"""The shape of a variable without a value: of more axes than TensorFlow can compute with, so that using it is an error.
"""


@dataclass(frozen=True)
class Entry:
    """One variable: its name and properties, and the TensorFlow variable that has its value between trainings.

    Its methods use the variable's handle as it is stored. So they are no looks at a variable that is watched.
    """

    spec: Variable
    tf_variable: Any

    @property
    def handle(self) -> Any:
        """The tensor that TensorFlow's operations are given for the variable."""
        return vars(self.tf_variable)["_handle"]

    def read(self) -> np.ndarray:
        """A copy of the variable's value. The module has an example."""
        self.make_value()
        return _tensor_of(self.tf_variable).numpy()

    def view(self) -> np.ndarray:
        """The variable's value, which cannot be written, without a copy of it.

        It stays the same when the variable changes: TensorFlow then gives the variable other memory.

        >>> entry = Entry(Variable("w", (2,), "float32"), tf.Variable([1.0, 2.0]))
        >>> seen = entry.view()
        >>> _ = entry.tf_variable.assign_add([1.0, 1.0])
        >>> seen.tolist(), entry.view().tolist()
        ([1.0, 2.0], [2.0, 3.0])
        """
        return np.asarray(_tensor_of(self.tf_variable))

    def first_value(self) -> Away | np.ndarray | None:
        """The first value of a variable that was made without one (`first_values.py`) and has none yet; else None."""
        make = vars(self.tf_variable).get("make_first_value")
        if make is None or has_value(self.tf_variable):
            return None
        with tf.init_scope():
            made = make()
            return made if isinstance(made, Away) else np.asarray(made, self.tf_variable.dtype.as_numpy_dtype)

    def make_value(self) -> None:
        """Give the variable its first value, if it has none yet.

        >>> Entry(Variable("w", (2,), "float32"), tf.Variable([1.0, 2.0])).make_value()
        """
        if (first := self.first_value()) is not None:
            self.write(array_of(first))

    def fits(self, value: Any) -> bool:
        """Whether the variable may get this value, which another function than TensorFlow's would convert.

        >>> entry = Entry(Variable("w", (2,), "float32"), tf.Variable([1.0, 2.0]))
        >>> entry.fits(np.ones(2)), entry.fits(tf.constant([1, 2]))
        (True, False)
        """
        dtype = self.tf_variable.dtype
        known = isinstance(value, np.ndarray) or (isinstance(value, tf.Tensor) and value.dtype == dtype)
        return known and dtype != tf.string and tuple(value.shape) == self.spec.shape

    def free(self) -> None:
        """Free the memory of the variable, whose shape stays what it is. It has no value until `write`.

        >>> entry = Entry(Variable("w", (2,), "float32"), tf.Variable([1.0, 2.0]))
        >>> entry.free()
        >>> entry.write(np.ones(2))
        >>> entry.tf_variable.numpy().tolist()
        [1.0, 1.0]
        """
        with tf.init_scope():
            nothing = tf.zeros(_NOTHING, self.tf_variable.dtype)
            vars(self.tf_variable).pop("make_first_value", None)
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=nothing, validate_shape=False)

    def write(self, value: np.ndarray) -> None:
        """Give the variable another value. The module has an example."""
        dtype = self.tf_variable.dtype
        # A copy: the array may be another's memory, and TensorFlow would share it. TensorFlow updates a copy of its own
        # in place. One of NumPy's is copied again at the first update, and freed only when that call has ended.
        with tf.init_scope():
            given = tf.constant(value, dtype) if dtype == tf.string else np.asarray(value, dtype.as_numpy_dtype)
            if dtype.name.startswith(WITHOUT_KERNELS):
                given = given.copy()
            elif dtype != tf.string:
                given = tf.raw_ops.DeepCopy(x=given)
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=given)
            vars(self.tf_variable).pop("make_first_value", None)


def has_value(tf_variable: Any) -> bool:
    """Whether a variable has a value. Else it is not made yet, or machines have it.

    >>> has_value(tf.Variable([1.0, 2.0]))
    True
    """
    return bool(_tensor_of(tf_variable).shape.rank != len(_NOTHING))


def _tensor_of(tf_variable: Any) -> Any:
    with tf.init_scope():
        return tf.raw_ops.ReadVariableOp(resource=vars(tf_variable)["_handle"], dtype=tf_variable.dtype)


def part_of(value: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    """Some rows of a value, or all of it; the result can be written.

    >>> part_of(np.arange(4), np.array([3, 1])).tolist(), part_of(np.arange(2), None).tolist()
    ([3, 1], [0, 1])
    """
    return np.require(value, requirements="W") if rows is None else value[rows]


def read_together(entry: Entry, entries: Sequence[Entry], freed: Collection[str]) -> list[Entry]:
    """The variables that are usually seen with this one: of its kind and size. One without memory is read alone.

    >>> one, two = (Entry(Variable(name, (2,), "float32"), tf.Variable([1.0, 2.0])) for name in "ab")
    >>> len(read_together(one, [one, two], ())), len(read_together(one, [one, two], {"a"}))
    (2, 1)
    """
    if entry.spec.name in freed:
        return [entry]
    small = entry.spec.byte_size <= _SMALL_BYTES
    return [
        other for other in entries
        if other.spec.kind == entry.spec.kind and (other.spec.byte_size <= _SMALL_BYTES) == small
        and other.spec.name not in freed
    ]
