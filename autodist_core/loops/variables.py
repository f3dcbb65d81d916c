"""The variables that marked functions touch, by name.

In: TensorFlow variables, as a trace meets them. Out: an `Entry` for each, with a name that no other variable has. All
functions of one `AutoDist` share these entries, and so one state.

>>> import tensorflow as tf
>>> known = Variables()
>>> [known.entry(tf.Variable([1.0], name="w")).spec.name for _ in range(2)]
['w', 'w_1']
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from autodist_core.capture.traced import unused, variable_of
from autodist_core.errors import CaptureError
from autodist_core.step.graph_item import Variable
from autodist_core.training import Entry


@dataclass
class Accumulated:
    """What is known of the variables of all functions of one strategy, by name.

    >>> known = Accumulated()
    >>> known.learn({"total"}, (), ())
    >>> known.own
    {'total'}
    """

    own: set[str] = field(default_factory=set)
    """They hold sums of what were the replicas' own gradients."""
    summed: set[str] = field(default_factory=set)
    """They hold values that a function has added up over the replicas."""
    trained: set[str] = field(default_factory=set)
    """Gradients are computed for them. They are weights, and hold no gradients."""
    multiplied: set[str] = field(default_factory=set)
    """They have been added up as what is the same on all replicas, by a function that is traced."""

    def train(self, names: Iterable[str]) -> None:
        """Note that gradients are computed for these variables."""
        self.trained |= set(names)
        self.own -= self.trained

    def learn(self, own: Collection[str], summed: Collection[str], multiplied: Collection[str]) -> None:
        """Keep what a traced function does; refuse what another function has been traced without."""
        late = sorted(set(own) & self.multiplied)
        if late:
            raise CaptureError(
                f"a function of run() writes the replicas' own gradients to {late[0]!r}, and a function that was "
                f"traced before reduces {late[0]!r} over the replicas as a value that is the same on all of them. Call "
                "run() with the function that writes the gradients first."
            )
        self.own |= set(own)
        self.summed |= set(summed)
        self.multiplied |= set(multiplied)


class Variables:
    """The variables of one `AutoDist`. The module has an example."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._used: set[str] = set()
        self.accumulated = Accumulated()
        """Which of them hold gradients, in functions of `run()`."""

    def entry(self, variable: Any, path: str = "") -> Entry:
        """The entry of a variable. `path` is a better name than the variable's own, if one is known."""
        found = self._entries.get(id(variable))
        if found is None:
            found = self._entries[id(variable)] = Entry(self._spec(variable, path), variable)
        return found

    def holding_gradients(self, entry: Entry) -> Entry:
        """The entry of a variable with the aggregation SUM to which gradients are added: it has one value, the sum.

        >>> import tensorflow as tf
        >>> total = tf.Variable(0.0, name="total", aggregation=tf.VariableAggregation.SUM)
        >>> known = Variables()
        >>> known.holding_gradients(known.entry(total)).spec.aggregation
        'none'
        """
        spec = replace(entry.spec, aggregation="none", kind="model")
        found = self._entries[id(entry.tf_variable)] = Entry(spec, entry.tf_variable)
        return found

    @property
    def holding(self) -> frozenset[int]:
        """The handles of the variables that hold sums of gradients, each as its `id`."""
        own = self.accumulated.own
        return frozenset(id(entry.handle) for entry in self._entries.values() if entry.spec.name in own)

    def __contains__(self, variable: object) -> bool:
        return id(variable) in self._entries

    def _spec(self, variable: Any, path: str) -> Variable:
        name = unused(path or variable.name.partition(":")[0] or "variable", self._used)
        if not variable.shape.is_fully_defined():
            raise CaptureError(f"variable {name!r} has the shape {variable.shape}. A distributed variable's is fixed.")
        aggregation = variable.aggregation.name.lower()
        # What replicas add up, they count: metrics do so.
        return variable_of(name, variable, "metric" if aggregation == "sum" else "model", aggregation)
