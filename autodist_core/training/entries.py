"""The variables of a training: each with its name and properties in a captured step, and the TensorFlow variable.

In: what a front knows of its variables. Out: an `Entry` for each. The capture, the plan and `TrainingState` use them.

>>> entry = Entry(Variable("w", (2,), "float32"), tf.Variable([1.0, 2.0]))
>>> entry.write(3 * entry.read())
>>> entry.tf_variable.numpy().tolist()
[3.0, 6.0]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.step.graph_item import Variable


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
        with tf.init_scope():
            value: np.ndarray = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.tf_variable.dtype).numpy()
        return value

    def write(self, value: np.ndarray) -> None:
        """Give the variable another value. The module has an example."""
        with tf.init_scope():
            # A copy: the array may be another's memory, and TensorFlow would share it.
            tensor = tf.convert_to_tensor(np.array(value), self.tf_variable.dtype)
            tf.raw_ops.AssignVariableOp(resource=self.handle, value=tensor)
