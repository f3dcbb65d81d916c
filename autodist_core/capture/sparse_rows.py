"""Find out how the rows of a sparse gradient on several replicas become the rows that one device has.

In: the row indices of a gradient in a traced step. Out: one of three kinds::

    EACH      indices of each example            the replicas' rows, one behind the other
    ALIKE     indices that no example changes    the sum of the replicas' rows: all replicas have the same indices
    UNIQUE    each index once (tf.unique)        the replicas' rows; rows with one index are added

Token ids are an example of `EACH`, positions in a sequence of `ALIKE`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from autodist_core.capture.tape import draws, graph_named
from autodist_core.capture.traversal import reached_from, sources
from autodist_core.errors import CaptureError
from autodist_core.step.graph_item import ALIKE, EACH, UNIQUE
from autodist_core.step.op_types import CALLS
from autodist_core.step.reaching import reached

_PASSING = {"Identity", "Reshape", "Cast", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient"}
_UNIQUE = {"Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"}

_Place = tuple[Any, int, tuple[Any, ...]]
"""An operation, one of its outputs, and the calls of functions inside which it is."""


def rows_of(variable: str, indices: Any, inputs: Sequence[Any]) -> str:
    """Return the kind of the row indices of a variable's gradient; `inputs` are the placeholders of the batch.

    >>> with tf.Graph().as_default():
    ...     ids = tf.compat.v1.placeholder(tf.int32, [None], name="ids")
    ...     kinds = [rows_of("table", indices, [ids]) for indices in (ids, tf.range(3), tf.unique(ids).y)]
    >>> kinds == [EACH, ALIKE, UNIQUE]
    True
    """
    kinds = _kinds(_place(indices, ()), frozenset(placeholder.op.name for placeholder in inputs))
    # Two lookups of unique rows may have a row in common.
    if len(kinds) == 1 or set(kinds) in ({EACH}, {ALIKE}):
        return kinds[0]
    raise CaptureError(
        f"rows of {variable!r} are looked up in several ways in one step: by each example's indices, by the same ones "
        "for every batch (positions, say), or without repetition. Replicas cannot put such a gradient together as one "
        "device would: give each way a table of its own."
    )


def _kinds(place: _Place, inputs: frozenset[str]) -> list[str]:
    operation, output, calls = origin = _origin(place)
    if operation.type == "ConcatV2":
        return [kind for part in list(operation.inputs)[:-1] for kind in _kinds(_place(part, calls), inputs)]
    if not _is_of_the_batch(origin, inputs):
        return [ALIKE]
    return [UNIQUE if operation.type in _UNIQUE and output == 0 else EACH]


def _place(tensor: Any, calls: tuple[Any, ...]) -> _Place:
    return tensor.op, tensor.value_index, calls


def _origin(place: _Place) -> _Place:
    """Follow a tensor back past the operations that only hand it on."""
    while (before := _before(place)) is not None:
        place = before
    return place


def _before(place: _Place) -> _Place | None:
    operation, output, calls = place
    if operation.type in _PASSING:
        return _place(operation.inputs[0], calls)
    if operation.type == "IdentityN":
        return _place(operation.inputs[output], calls)
    if operation.type == "SelectV2" and [part.op.type for part in operation.inputs][:2] == ["Less", "AddV2"]:
        # Keras's `take`, which its Embedding uses, counts negative indices from the end in this way.
        return _place(operation.inputs[2], calls)
    if operation.type in CALLS:
        graph = graph_named(operation.graph, operation.get_attr("f").name)
        return _place(graph.outputs[output], (*calls, operation))
    if operation.type == "Placeholder" and calls:
        handed = graph_named(calls[-1].graph, calls[-1].get_attr("f").name).inputs
        names = [placeholder.op.name for placeholder in handed]
        return _place(calls[-1].inputs[names.index(operation.name)], calls[:-1])
    return None


def _is_of_the_batch(place: _Place, inputs: frozenset[str]) -> bool:
    """Whether a tensor is computed from the batch, or from random numbers that each replica draws."""
    def read(place: _Place) -> Iterator[_Place]:
        operation, _, calls = _origin(place)
        given = () if _is_size_of_all(operation) else operation.inputs
        return (_place(source, calls) for source in given if source.dtype != tf.resource)

    made_of = (_origin(each) for each in reached([place], read))
    return any(draws(operation) or (not calls and operation.name in inputs) for operation, _, calls in made_of)


def _is_size_of_all(operation: Any) -> bool:
    """Whether an operation gives the length of an axis other than the batch axis: it is equal on all replicas."""
    if operation.type != "StridedSlice" or operation.inputs[0].op.type != "Shape":
        return False
    shape = operation.inputs[0].op.inputs[0].shape
    position = tf.get_static_value(operation.inputs[1])
    return (
        shape.rank is not None and position is not None and position.size == 1
        and operation.get_attr("shrink_axis_mask") == 1 and int(position[0]) % shape.rank != 0
        and all(each.type != "Transpose" for each in reached_from([operation.inputs[0].op], sources).values())
    )
