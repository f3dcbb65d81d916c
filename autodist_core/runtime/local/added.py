"""The variables that kernels added to the steps of a session of one machine, such as the residuals of compressors.

In: the added variables of a distributed graph, and loaded values. Out: a handle for each, and values by name.

>>> added = Added()
>>> added.load({"error": np.ones(2, "float32")})
>>> added.add(AddedVariable(name, "/device:CPU:0", "float32", (2,)) for name in ("error", "directions"))
>>> {name: value.tolist() for name, value in added.read().items()}
{'error': [1.0, 1.0], 'directions': [0.0, 0.0]}
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.kernel.added_variables import AddedVariable
from autodist_core.runtime.added_variables import require_fit


class Added:
    """The added variables of one session. All graphs of a step share them. The module has an example."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[AddedVariable, Any]] = {}
        self._given: dict[str, np.ndarray] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._made

    def handle(self, name: str) -> Any:
        """The handle of a variable."""
        return self._made[name][1].handle

    def add(self, variables: Iterable[AddedVariable]) -> None:
        """Make the variables that do not exist yet. Each starts from its loaded value, else from its initial value."""
        new = [variable for variable in variables if variable.name not in self._made]
        require_fit(new, self._given)
        for variable in new:
            given = self._given.pop(variable.name, None)
            value = variable.initial() if given is None else given
            with tf.init_scope(), tf.device(variable.device):
                self._made[variable.name] = variable, tf.Variable(value, trainable=False, dtype=variable.dtype)

    def read(self) -> dict[str, np.ndarray]:
        """The value of each variable by name, and the loaded values that have no variable yet."""
        return self._given | {name: np.array(made.numpy()) for name, (_, made) in self._made.items()}

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Set every variable: to its value here, else to its initial value."""
        require_fit([variable for variable, _ in self._made.values()], values)
        self._given = dict(values)
        for name, (variable, made) in self._made.items():
            given = self._given.pop(name, None)
            made.assign(variable.initial() if given is None else given)
