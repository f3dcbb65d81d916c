"""The variables that kernels added to the steps of a session, such as the residuals of compressors.

In: the added variables of a distributed graph, and loaded values. Out: values by name. The session imports a graph only
after it has made the graph's added variables here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.errors import SessionError
from autodist_core.kernel.added_variables import AddedVariable
from autodist_core.kernel.placement.devices import host_of


@dataclass(frozen=True)
class _Operations:
    """The operations of one added variable in the session's graph: its feed, its assignment, and its value."""

    variable: AddedVariable
    source: Any
    assign: Any
    value: Any


class AddedVariables:
    """The added variables of one session. All graphs of a step share them.

    >>> session = tf.compat.v1.Session(graph=tf.Graph())
    >>> added = AddedVariables(session.graph, session.run)
    >>> added.load({"error": np.ones(2, "float32")})
    >>> added.add(AddedVariable(name, "/device:CPU:0", "float32", (2,)) for name in ("error", "directions"))
    >>> {name: value.tolist() for name, value in added.read().items()}
    {'error': [1.0, 1.0], 'directions': [0.0, 0.0]}
    >>> session.close()
    """

    def __init__(self, graph: Any, run: Callable[..., Any]) -> None:
        self._graph = graph
        self._run = run
        self._known: dict[str, _Operations] = {}
        self._given: dict[str, np.ndarray] = {}

    def add(self, variables: Iterable[AddedVariable]) -> None:
        """Make the variables that do not exist yet. Each starts from its loaded value, else from its initial value."""
        new = [variable for variable in variables if variable.name not in self._known]
        require_fit(new, self._given)
        with self._graph.as_default():
            for variable in new:
                dtype = tf.as_dtype(variable.dtype)
                with tf.device(host_of(variable.device)):
                    source = tf.compat.v1.placeholder(dtype, variable.shape)
                with tf.device(variable.device):
                    handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=variable.shape, shared_name=variable.name)
                    assign = tf.raw_ops.AssignVariableOp(resource=handle, value=source)
                    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
                self._known[variable.name] = _Operations(variable, source, assign, value)
        self._set(new)

    def read(self) -> dict[str, np.ndarray]:
        """The value of each variable by name, and the loaded values that have no variable yet."""
        if not self._known:
            return dict(self._given)
        values = self._run({name: operations.value for name, operations in self._known.items()})
        return self._given | {name: np.array(value) for name, value in values.items()}

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Set every variable: to its value here, else to its initial value."""
        known = [operations.variable for operations in self._known.values()]
        require_fit(known, values)
        self._given = dict(values)
        self._set(known)

    def _set(self, variables: Sequence[AddedVariable]) -> None:
        if variables:
            operations = [self._known[variable.name] for variable in variables]
            values = [self._given.pop(variable.name, None) for variable in variables]
            feeds = {
                one.source: one.variable.initial() if value is None else value
                for one, value in zip(operations, values, strict=True)
            }
            self._run([one.assign for one in operations], feeds)


def require_fit(variables: Sequence[AddedVariable], values: Mapping[str, np.ndarray]) -> None:
    """Raise a SessionError unless the values have the types and shapes of the variables.

    >>> require_fit([AddedVariable("error", "/device:CPU:0", "float32", (2,))], {"error": np.zeros(2, "float32")})
    """
    for variable in variables:
        value = values.get(variable.name)
        if value is not None and (value.shape, value.dtype.name) != (variable.shape, variable.dtype):
            raise SessionError(
                f"{variable} cannot be set to {value.dtype.name}{list(value.shape)}: the compressor state that was "
                "loaded is another model's."
            )
