"""Loops with one round for each example of the batch.

In: a loop, and the states of its arguments. Out: its `Rounds`, or None. For the loop of `tf.map_fn` over n examples::

    counter = 0
    while counter < n:                      rounds: one for each example
        row = TensorListGetItem(x, counter)     a value of the round's own example
        counter = counter + 1

Only in such a loop an entry that is read at the counter is one example's. Another entry is taken by its place.
"""

from dataclasses import dataclass
from typing import Any

from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.reduced import Size
from autodist_core.capture.batch_axis.states.state import One, Rows, State
from autodist_core.capture.traversal import behind, reached_from, sources
from autodist_core.step.reaching import reached

_JOINING = ("Identity", "LogicalAnd")
"""Operations that make a condition of others."""


@dataclass
class Rounds:
    """The rounds of a loop over the examples, while its body is walked over.

    >>> Rounds(None, frozenset([0]), None, 1).own(One(stride=1), Rows())
    True
    """

    operation: Any
    counters: frozenset[int]
    """The arguments that count the rounds from zero on."""
    limit: Any
    """The comparison of a counter with the number of rounds."""
    each: int | None
    """How many rounds there are for each example; None if that is not known."""
    _seen: Rows | None = None
    """The first list whose entry each round has read."""

    def place(self) -> One:
        """Return the state of the counters in a round. The module's docstring has one."""
        return One(stride=1, origin=self.operation)

    def own(self, index: State, entries: Rows) -> bool:
        """Whether an index is that of the round's own entry. The class has an example."""
        own = isinstance(index, One) and index.stride == 1 and entries.each == self.each and not entries.subset
        if own and self._seen is None and not entries.free:
            self._seen = entries
        seen = self._seen
        return own and (seen is None or entries.free or (seen.outer, seen.inner) == (entries.outer, entries.inner))

    def listed(self, state: State) -> Rows:
        """Return the state of a list with an entry of each round.

        >>> Rounds(None, frozenset([0]), None, 1).listed(One()).axes
        (0,)
        """
        seen = self._seen or (Rows() if self.each == 1 else Rows(outer=None, inner=None))
        return Rows(outer=seen.outer, inner=seen.inner, stride=state.stride, origin=state.origin)


def rounds_of(flow: Any, operation: Any, body: Any, condition: Any) -> Rounds | None:
    """Return the rounds of a loop that counts to the number of examples; None if the loop does something else.

    The walk has been over the condition.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.map_fn(tf.reduce_sum, x))
    'rows along axis 0'
    """
    counters = frozenset(at for at, tensor in enumerate(operation.inputs) if _counts(body, at, tensor))
    places = {tensor.op.name: at for at, tensor in enumerate(condition.inputs)}
    made_of = reached([condition.outputs[0].op], lambda each: sources(each) if each.type in _JOINING else ())
    limits, found = [each for each in made_of if each.type not in _JOINING], set()
    for limit in limits:
        if limit.type != "Less" or places.get(behind(limit.inputs[0]).op.name) not in counters:
            return None
        size = flow.state_of(limit.inputs[1])
        # The number of rounds is the same in all rounds.
        stays = all(is_handed_on(body, at) for at in _read(limit.inputs[1], places))
        if not (isinstance(size, Size) and size.degree == 1 and stays):
            return None
        found.add(size.times)
    return Rounds(operation, counters, limits[-1], found.pop()) if len(found) == 1 else None


def changing(condition: Any, body: Any) -> frozenset[int]:
    """The positions of the values that rounds of a loop change and that its condition reads.

    >>> import tensorflow as tf
    >>> two = [tf.TensorSpec((), tf.float32)] * 2
    >>> def traced(function):
    ...     return tf.function(function, autograph=False).get_concrete_function(*two).graph
    >>> changing(traced(lambda rest, rate: rest > 1.0), traced(lambda rest, rate: (rest * rate, rate)))
    frozenset({0})
    """
    places = {tensor.op.name: at for at, tensor in enumerate(condition.inputs)}
    return frozenset(at for at in _read(condition.outputs[0], places) if not is_handed_on(body, at))


def _read(tensor: Any, places: dict[str, int]) -> set[int]:
    """The positions of the arguments of which a value is made."""
    return {places[each.name] for each in reached_from([tensor.op], sources).values() if each.name in places}


def may_stay(body: Any, at: int) -> bool:
    """Whether a round may leave the entries of a value as they are that are ready: it chooses between old and new.

    >>> import tensorflow as tf
    >>> grown = tf.function(lambda x: tf.where(x < 1.0, 2.0 * x, x), autograph=False)
    >>> may_stay(grown.get_concrete_function(tf.TensorSpec((None,), tf.float32)).graph, 0)
    True
    """
    made = behind(body.outputs[at]).op
    return made.type in ("Select", "SelectV2") and any(behind(each) is body.inputs[at] for each in made.inputs[1:])


def _counts(body: Any, at: int, start: Any) -> bool:
    """Whether an argument of a loop is zero, and one more in each round."""
    step = behind(body.outputs[at]).op
    if step.type != "AddV2" or start.shape.rank != 0 or not start.dtype.is_integer or value_of(start) != 0:
        return False
    one, other = (behind(tensor) for tensor in step.inputs)
    return (one is body.inputs[at] and value_of(other) == 1) or (other is body.inputs[at] and value_of(one) == 1)


def is_handed_on(body: Any, at: int) -> bool:
    """Whether each round of a loop leaves a value as it is. The module's docstring has a loop.

    >>> import tensorflow as tf
    >>> counted = tf.function(lambda at, end: (at + 1, end), autograph=False)
    >>> body = counted.get_concrete_function(*[tf.TensorSpec((), tf.int32)] * 2).graph
    >>> is_handed_on(body, 0), is_handed_on(body, 1)
    (False, True)
    """
    return behind(body.outputs[at]) is body.inputs[at]
