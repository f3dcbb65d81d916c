"""Findings of the static analysis, which the front turns into notes of the plan.

In: nothing; `flow` fills these values. Out: a `Found`. For a layer that subtracts the batch's mean::

    Found(couplings=(Coupling(operation=Mean, what="gives each example a value of the whole batch", by=Sub, ...),))
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autodist_core.capture.batch_axis.states.state import NO_CLAIM, State
from autodist_core.step.graph_item import Variable

PAIRS = "pairs the examples of a batch with each other"
ALONG_EXAMPLES = "goes along the examples of a batch"
POSITION = "takes examples by their place in the batch"
BATCH_VALUE = "gives each example a value of the whole batch"
CHOICE = "chooses by a value of the whole batch"
ENDS = "ends a loop by a value of the whole batch"
PLACE = "gives each example a value of its place in the batch"
FIXED = "fixes how many examples a batch has"
GIVEN = "takes rows of the batch by numbers that come with the batch"
SCALED = "makes a value that depends on how many examples the batch has"

REMEDIES = {
    FIXED: (
        "Leave the number open: write -1 in the shape, or tf.shape(x)[0] where the shape has another -1."
    ),
    GIVEN: (
        "They count the rows of the whole batch, and a replica has a part of these, counted from 0. Let each example "
        "be a graph of its own, and take rows within it (batch_dims=1), or take them from whole_batch(x), or train on "
        "one device."
    ),
}
"""What cannot run on a part of a batch, and what to do instead."""


@dataclass(frozen=True)
class Coupling:
    """An operation whose result for one example depends on other examples.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     mean, sub = tf.reduce_mean([1.0, 3.0]), tf.subtract([1.0, 3.0], 2.0)
    >>> found = Coupling(mean.op, BATCH_VALUE, within=mean.op, by=sub.op)
    >>> f"{found.operation.type} {found.what}"
    'Mean gives each example a value of the whole batch'
    """

    operation: Any
    what: str
    within: Any
    """The operation in the graph of the step that runs it: itself, or the call of a function."""
    by: Any
    """The operation that uses the result for single examples."""


@dataclass(frozen=True)
class UncombinedWrite:
    """A write of a variable where the replicas' values do not combine to one device's value.

    >>> from autodist_core.capture.batch_axis.states.reduced import Mixed
    >>> peak = Variable("peak", (), "float32", kind="metric")
    >>> write = UncombinedWrite(peak, Mixed("Sqrt"), "operation", "operation")
    >>> write.variable.name, write.state
    ('peak', Mixed(origin='Sqrt'))
    """

    variable: Variable
    state: State
    operation: Any
    within: Any
    """The operation in the graph of the step that runs the write."""


@dataclass(frozen=True)
class UncombinedResult:
    """A result of the step where the replicas' results do not combine to one device's result.

    >>> from autodist_core.capture.batch_axis.states.reduced import Mixed
    >>> UncombinedResult(0, Mixed("Sqrt")).state
    Mixed(origin='Sqrt')
    """

    index: int
    state: State
    how: str = "mean"
    """How the replicas' results are joined all the same: mean, rows or same."""
    origin: Any = None
    """The operation that made the result, if its state has none."""


@dataclass(frozen=True)
class Found:
    """All findings of one step.

    >>> Found().couplings
    ()
    """

    couplings: tuple[Coupling, ...] = ()
    uncombined_writes: tuple[UncombinedWrite, ...] = ()
    uncombined_results: tuple[UncombinedResult, ...] = ()
    undecided: tuple[tuple[Any, Any], ...] = ()
    """Operations that cannot be decided: it is not known whether they mix examples. Beside each is the operation in the
    graph of the step that runs it."""
    of_gradients: tuple[tuple[Any, Any], ...] = ()
    """Operations that compute with a gradient on the way to a gradient, a variable or a result, in the same form."""
    states: Mapping[int, State] = field(default_factory=dict)
    """The states of tensors by their `id`, as the rules give them, whatever the caller knows."""

    def state_of(self, tensor: Any) -> State:
        """What is known of a tensor, as the rules give it."""
        return self.states.get(id(tensor), NO_CLAIM)

    @property
    def mixing(self) -> tuple[Coupling, ...]:
        """The couplings that give other numbers on a part of a batch."""
        return tuple(each for each in self.couplings if each.what != FIXED)

    @property
    def fixing(self) -> tuple[Coupling, ...]:
        """The couplings that cannot run on a part of a batch, as those that take batches of one size only."""
        return tuple(each for each in self.couplings if each.what in REMEDIES)
