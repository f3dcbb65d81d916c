"""The variables of TensorFlow that are the copies of a placement, on one machine.

In: a placement, and the user's variables by name. Out: a handle for each copy. The user's variable is one of the
copies itself, its **home**, where it is on the device of one whose value counts between steps: then this state exists
once. Every other copy is a variable of its own, which gets the value of the home before a step, if that may have
changed. A variable that is split over several devices has no home: its value is put together when somebody looks.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.kernel import Placement
from autodist_core.kernel.added_variables import AddedVariable
from autodist_core.kernel.placement.placement import Copy
from autodist_core.runtime.recovery.on_disk import fill, room
from autodist_core.step.graph_item import Variable


class Copies:
    """The copies of the variables of one session.

    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import AllReduce
    >>> with tf.device("CPU:0"):
    ...     kernel = tf.Variable(tf.ones((3, 1)))
    >>> copies = Copies(example_placement(AllReduce()))
    >>> copies.add([Variable("kernel", (3, 1), "float32", handle="kernel")], {"kernel": kernel.handle})
    >>> copies.home("kernel").name, copies.handle("kernel@replica0") is kernel.handle
    ('kernel@replica0', True)
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.variables: dict[str, Variable] = {}
        """The variables, by name."""
        self._homes: dict[str, Copy] = {}
        self._own: dict[str, Any] = {}
        """The handles of the user's variables, by name."""
        self._all: dict[str, tuple[Variable, Copy]] = {}
        """What each copy is a copy of, by the copy's name."""
        self._handles: dict[str, Any] = {}
        """The handle of each copy that a step has asked for, by the copy's name."""
        self._made: dict[str, Any] = {}
        """The variables of TensorFlow that were made here, by the copy's name or that of a variable of a kernel."""

    def add(self, variables: Iterable[Variable], own: Mapping[str, Any]) -> None:
        """Take variables up. `own` has the user's variable for each, where there is one."""
        for variable in variables:
            if variable.name in self.variables or not variable.handle:
                continue
            self.variables[variable.name] = variable
            self._all |= {copy.shared_name: (each, copy) for each, copy in self._copies(variable)}
            if variable.name in own:
                self._own[variable.name] = own[variable.name]
                self._settle_home(variable, own[variable.name])

    def adopt(self, variable: AddedVariable) -> None:
        """Make a variable that a kernel added, of zeros."""
        self._make(variable.name, variable.device, lambda: tf.zeros(variable.shape, variable.dtype))

    def _make(self, name: str, device: str, initial: Callable[[], Any]) -> None:
        with tf.init_scope(), tf.device(device):
            self._made[name] = tf.Variable(initial(), trainable=False)
        self._handles[name] = self._made[name].handle

    def _settle_home(self, variable: Variable, handle: Any) -> None:
        device = tf.DeviceSpec.from_string(handle.device)
        for copy in self._placement.homes(variable):
            wanted = tf.DeviceSpec.from_string(copy.device)
            if (wanted.device_type, wanted.device_index) == (device.device_type, device.device_index):
                self._homes[variable.name] = copy
                self._handles[copy.shared_name] = handle
                return

    def home(self, name: str) -> Copy | None:
        """The copy that the user's variable is; None if it is none of them. The class has an example."""
        return self._homes.get(name)

    def is_alone(self, name: str) -> bool:
        """Whether the user's variable is the only copy."""
        return name in self._homes and len(self._copies(self.variables[name])) == 1

    def handle(self, shared_name: str) -> Any:
        """The handle of a copy. A copy that does not exist yet is made, with the value of the user's variable."""
        if shared_name not in self._handles:
            variable, copy = self._all[shared_name]
            self._make(shared_name, copy.device, lambda: self._initial(variable, copy))
        return self._handles[shared_name]

    def spread(self, names: Iterable[str]) -> None:
        """Give the other copies of these variables the value of the home."""
        for name in names:
            # A copy that no step has asked for gets the value of the home when it is made.
            if name in self._homes:
                self._write(self.variables[name], self._read(self._handles[self._homes[name].shared_name], name))

    def write(self, name: str, value: np.ndarray) -> None:
        """Give all copies of a variable this value."""
        if name not in self.variables:
            self._made[name].assign(value)
            return
        if (home := self._homes.get(name)) is not None:
            self._assign(self._handles[home.shared_name], value, self.variables[name])
        self._write(self.variables[name], value)

    def read(self, name: str) -> np.ndarray:
        """The value of a variable."""
        if name not in self.variables:
            return np.array(self._made[name].numpy())
        variable = self.variables[name]
        if (home := self._homes.get(name)) is not None:
            return self._read(self._handles[home.shared_name], name).numpy()
        sources = self._placement.read_from(variable)
        found = [(part, self._read(self.handle(copy.shared_name), name)) for part, copy in sources]
        if len(found) == 1:
            return found[0][1].numpy()
        value = room(variable.shape, np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype))
        for part, tensor in found:
            fill(part.entries_of(value), tensor.numpy())
        return value

    def drop(self) -> None:
        """Free what was made here."""
        self._handles.clear()
        self._made.clear()
        self._own.clear()

    def _copies(self, variable: Variable) -> list[tuple[Variable, Copy]]:
        parts = self._placement.parts.get(variable.name, ())
        return [(each, copy) for each in (variable, *parts) for copy in self._placement.copies(each.name)]

    def _initial(self, variable: Variable, copy: Copy) -> Any:
        own = self._own.get(variable.part_of or variable.name)
        dtype = tf.as_dtype(variable.dtype)
        if own is not None and not copy.starts_from_zero(variable):
            value = tf.raw_ops.ReadVariableOp(resource=own, dtype=dtype)
            if value.shape.rank == len(variable.shape):  # else it has no value yet, and gets one by `write`
                return variable.entries_of(value)
        return np.zeros(variable.shape, dtype.as_numpy_dtype)

    def _write(self, variable: Variable, value: Any) -> None:
        home = self._homes.get(variable.name)
        for each, copy in self._copies(variable):
            if copy == home or (home is not None and copy.shared_name not in self._handles):
                continue
            own = tf.zeros_like(value) if copy.starts_from_zero(each) else each.entries_of(value)
            self._assign(self.handle(copy.shared_name), own, each, copy.device)

    def _read(self, handle: Any, name: str) -> Any:
        with tf.init_scope():
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.as_dtype(self.variables[name].dtype))

    @staticmethod
    def _assign(handle: Any, value: Any, variable: Variable, device: str | None = None) -> None:
        with tf.init_scope(), tf.device(device):
            tensor = value if tf.is_tensor(value) else tf.constant(value, tf.as_dtype(variable.dtype))
            tf.raw_ops.AssignVariableOp(resource=handle, value=tensor)
