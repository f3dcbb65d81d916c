"""The variables that kernels added to the steps of a session, such as the residuals of compressors.

In: the added variables of a distributed graph, and loaded values. Out: values by name. The session imports a graph only
after it has made the graph's added variables here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from autodist_core.errors import SessionError
from autodist_core.kernel.added_variables import AddedVariable


@dataclass(eq=False)
class AddedVariables:
    """The added variables of one session, which makes, writes and reads them. All graphs of a step share them.

    >>> values = {}
    >>> added = AddedVariables(str, values.update, lambda names: [(name, values[name]) for name in names])
    >>> added.load({"error": np.ones(2, "float32")})
    >>> added.add(AddedVariable(name, "/device:CPU:0", "float32", (2,)) for name in ("error", "directions"))
    >>> {name: value.tolist() for name, value in added.read().items()}
    {'error': [1.0, 1.0], 'directions': [0.0, 0.0]}
    """

    adopt: Callable[[AddedVariable], object]
    write: Callable[[Mapping[str, np.ndarray]], None]
    values_of: Callable[[Sequence[str]], Iterable[tuple[str, np.ndarray]]]
    _known: dict[str, AddedVariable] = field(default_factory=dict)
    _given: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, variables: Iterable[AddedVariable]) -> None:
        """Make the variables that do not exist yet. Each starts from its loaded value, else from its initial value."""
        new = [variable for variable in variables if variable.name not in self._known]
        require_fit(new, self._given)
        for variable in new:
            self.adopt(variable)
            self._known[variable.name] = variable
        self._set(new)

    def read(self) -> dict[str, np.ndarray]:
        """The value of each variable by name, and the loaded values that have no variable yet."""
        return self._given | {name: np.array(value) for name, value in self.values_of(list(self._known))}

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Set every variable: to its value here, else to its initial value."""
        require_fit(list(self._known.values()), values)
        self._given = dict(values)
        self._set(self._known.values())

    def _set(self, variables: Iterable[AddedVariable]) -> None:
        given = [(variable, self._given.pop(variable.name, None)) for variable in variables]
        self.write({each.name: each.initial() if value is None else value for each, value in given})


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
