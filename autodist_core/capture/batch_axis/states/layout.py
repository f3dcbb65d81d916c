"""How the entries along an axis belong to the examples, and whether two tensors have the same order of examples.

In: the states of rows that an operation takes entry by entry. Out: the state of the rows together. For n examples::

    Repeat(x, 2)                  x0 x0 x1 x1 ...     outer 1, inner 2
    Tile(x, 2)                    x0 x1 ... x0 x1 ... outer 2, inner 1
    Sub(Repeat(x), Tile(x))       a coupling: it pairs the examples with each other
    Sub(chosen by a, chosen by b) a coupling, too: the first chosen example may be another one
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autodist_core.capture.batch_axis.states.finding import PAIRS
from autodist_core.capture.batch_axis.states.state import Rows, State
from autodist_core.capture.traversal import behind

_MOVING = ("Identity", "Reshape", "StopGradient", "Squeeze", "ExpandDims", "EnsureShape")
_DEPTH = 12


def aligned(flow: Any, operation: Any, states: Sequence[State]) -> Rows | None:
    """Return the rows among states as one; None if they have other orders of examples, or if that is not known.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.concat([x, x], 0) + tf.repeat(x, 2, axis=0))
    'unknown; AddV2 pairs the examples of a batch with each other'
    """
    with_rows = [state for state in states if isinstance(state, Rows)]
    found = next((state for state in with_rows if not state.free), with_rows[0])
    for state in with_rows:
        together = _together(found, state)
        if together is None:
            known = all(each.each is not None or each.subset for each in (found, state))
            if known:
                flow.couple(operation, PAIRS)
            return None
        found = together
    return found


def _together(one: Rows, other: Rows) -> Rows | None:
    if other.free or one == other:
        return one
    if one.subset != other.subset:
        return None
    if not one.subset:
        # The tensors have equally many entries: one of two numbers tells the other.
        pairs = (one.outer, other.outer), (one.inner, other.inner)
        if any(None not in pair and pair[0] != pair[1] for pair in pairs) or all(None in pair for pair in pairs):
            return None
    return replace(
        one, outer=other.outer if one.outer is None else one.outer,
        inner=other.inner if one.inner is None else one.inner,
    )


def choice_of(tensor: Any, depth: int = _DEPTH) -> Any:
    """Return a key of the condition by which examples are chosen: equal keys are of equal conditions.

    Operations up to a `depth` are compared, and tensors behind them are themselves.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.boolean_mask(x, x[:, 0] > 0) + tf.boolean_mask(x, x[:, 1] > 0))
    'unknown; AddV2 pairs the examples of a batch with each other'
    """
    tensor = behind(tensor, _MOVING)
    operation = tensor.op
    alone = not operation.inputs and operation.type != "Const"
    if depth == 0 or alone or operation.op_def.is_stateful:
        return (id(operation.graph), tensor.name)
    attributes = tuple(sorted(
        (name, value.SerializeToString()) for name, value in operation.node_def.attr.items()
        if not name.startswith("_")
    ))
    inputs = tuple(choice_of(each, depth - 1) for each in operation.inputs)
    return (operation.type, tensor.value_index, attributes, inputs)
