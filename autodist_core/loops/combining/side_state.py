"""The additions of a function to its own variables, such as the totals of metrics, and how each counts over replicas.

In: the graph of a traced function, its variables, and the states of what is added. Out: for each addition that needs
one, a power of the replica's share (see `autodist_core.capture.rewrite.shares`)::

    variable's aggregation   added to it              counts
    sum                      a sum over examples      as it is
    sum                      a mean, or a constant    times the share
    mean, or none            a mean, or a constant    as it is
    mean, or none            a sum over examples      times the inverse share: the weighted mean is taken afterwards

So a metric that adds the mean loss of a batch and counts batches has one device's total and one device's count.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autodist_core.capture.batch_axis import SAME, Linear, State
from autodist_core.capture.traced import Counted, Traced
from autodist_core.capture.traversal import behind
from autodist_core.step.graph_item import Variable

_PASSING = ("Identity", "Cast")


@dataclass(frozen=True)
class Addition:
    """One addition to a variable. `additions` finds them, and has an example."""

    variable: Variable
    operation: Any
    """The operation that adds: an assignment, or the sum that is assigned."""
    position: int
    """The position of what is added among its inputs."""
    write: Any
    """The assignment."""

    @property
    def added(self) -> Any:
        """The tensor that is added."""
        return self.operation.inputs[self.position]


def additions(traced: Traced) -> list[Addition]:
    """The additions outside the updates.

    >>> from autodist_core.capture.example import example_traced
    >>> (found,) = additions(example_traced())
    >>> found.variable.name, found.operation.type, found.added.op.type
    ('total', 'AssignAddVariableOp', 'Mul')
    """
    return [
        addition for operation in traced.graph.get_operations() if operation.name not in traced.updates
        for addition in _addition(operation, traced.captured)
    ]


def _addition(operation: Any, variables: Mapping[str, Variable]) -> Iterator[Addition]:
    variable = variables.get(operation.inputs[0].op.name) if len(operation.inputs) else None
    if variable is None or not operation.type.startswith("Assign"):
        return
    if operation.type in ("AssignAddVariableOp", "AssignSubVariableOp"):
        yield Addition(variable, operation, 1, operation)
    elif operation.type == "AssignVariableOp":
        value = behind(operation.inputs[1], _PASSING).op
        if value.type in ("AddV2", "Add", "Sub"):
            for position in (1,) if value.type == "Sub" else (0, 1):
                own = behind(value.inputs[1 - position], _PASSING).op
                if own.type == "ReadVariableOp" and own.inputs[0] is operation.inputs[0]:
                    yield Addition(variable, value, position, operation)
                    return


def counted(found: Iterable[tuple[Addition, State]]) -> dict[str, Counted]:
    """How each addition counts that does not count as it is, by the operation's name, from the state of what is added.

    >>> from autodist_core.capture.example import example_traced
    >>> (found,) = additions(example_traced())
    >>> [each.power for each in counted([(found, SAME)]).values()]
    [1]
    """
    powers = {addition.operation.name: (addition, _power(addition, state)) for addition, state in found}
    return {
        name: Counted(addition.position, addition.added.dtype.base_dtype, power)
        for name, (addition, power) in powers.items() if power
    }


def _power(addition: Addition, state: State) -> int:
    if not addition.added.dtype.is_floating or addition.variable.kind == "seed":
        return 0
    by_batch = isinstance(state, Linear) and state.degree == 1
    alike = state == SAME or (isinstance(state, Linear) and state.degree == 0)
    if addition.variable.combined == "sum":
        return 1 if alike else 0
    return -1 if by_batch and addition.variable.combined == "mean" else 0
