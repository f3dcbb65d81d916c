"""Rules for operations that move entries: other shapes, other axes, and several tensors in one.

In: the states of the inputs. Out: the state of the result. For `x` with the examples along its first axis::

    Transpose(x, [1, 0])    rows along axis 1
    Tile(x, [2, 1])         rows along axis 0, the whole batch twice
    Unpack(x, axis 0)       a coupling: it takes examples by their position in the batch
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from autodist_core.capture.batch_axis.rules import arithmetic
from autodist_core.capture.batch_axis.rules.counting import scaled_by
from autodist_core.capture.batch_axis.rules.slices import part_of_sizes
from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.finding import ALONG_EXAMPLES, FIXED, PAIRS, POSITION
from autodist_core.capture.batch_axis.states.reduced import Largest, Size, size_in
from autodist_core.capture.batch_axis.states.reshaping import product, reshaped, sizes_of
from autodist_core.capture.batch_axis.states.slice_bounds import Bound, bound_of, cut_out
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, OTHER, SAME, Alike, One, Rows, Sizes, State


def transpose(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor with its axes in another order.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.transpose(x))
    'rows along axis 1'
    """
    order = value_of(operation.inputs[1])
    if not isinstance(states[0], Rows):
        return states[0]
    return NO_CLAIM if order is None else states[0].at(*(list(order).index(axis) for axis in states[0].axes))


def reshape(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor in another shape.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.reshape(x, [-1, 3, 1]))
    'rows along axis 0'
    >>> shown(lambda x: tf.reshape(x, [8, 3]))
    'unknown; Reshape fixes how many examples a batch has'
    """
    if not isinstance(states[0], Rows):
        return states[0]
    if operation.outputs[0].shape.is_fully_defined() and not operation.inputs[0].shape.is_fully_defined():
        return flow.couple(operation, FIXED)
    return reshaped(states[0], operation.inputs[0].shape, operation.outputs[0].shape, states[1])


def expand(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor with one more axis.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.expand_dims(x, 0))
    'rows along axis 1'
    """
    axes = flow.axes_of(operation.inputs[1], operation.outputs[0].shape.rank)
    if not isinstance(states[0], Rows):
        return states[0]
    return NO_CLAIM if axes is None else states[0].at(*(axis + (axes[0] <= axis) for axis in states[0].axes))


def squeeze(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor without some axes of size 1.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.squeeze(x, 1), None, 1)
    'rows along axis 0'
    """
    sizes, gone = sizes_of(operation.inputs[0].shape), list(operation.get_attr("squeeze_dims"))
    if not isinstance(states[0], Rows):
        return states[0]
    if sizes is None:
        return NO_CLAIM
    gone = [axis % len(sizes) for axis in gone] or [axis for axis, size in enumerate(sizes) if size == 1]
    if set(gone) & set(states[0].axes):
        return NO_CLAIM
    return states[0].at(*(axis - sum(other < axis for other in gone) for axis in states[0].axes))


def alike_in_shape(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of zeros or ones in a tensor's shape.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.zeros_like(x))
    'rows along axis 0'
    """
    state = states[0]
    if not isinstance(state, Rows):
        return SAME
    return Rows(state.axes, state.outer, state.inner, subset=state.subset, free=True)


def broadcast(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor that is repeated to a shape.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.broadcast_to(x, [2, tf.shape(x)[0], 3]))
    'rows along axis 1'
    >>> shown(lambda x: tf.broadcast_to(x[:, :1], [tf.shape(x)[0]] * 2))
    'unknown; BroadcastTo pairs the examples of a batch with each other'
    """
    state, asked = states
    if isinstance(state, Rows):
        rank, own = operation.outputs[0].shape.rank, operation.inputs[0].shape.rank
        if rank is None or own is None:
            return NO_CLAIM
        found = state.at(*(axis + rank - own for axis in state.axes))
        return flow.couple(operation, PAIRS) if _repeats(operation, asked, found) else found
    return _spread(flow, operation, state, asked)


def _repeats(operation: Any, sizes: State, state: Rows) -> bool:
    """Whether each example may be repeated as often as the batch has examples, along another axis than its own."""
    if sizes == SAME or (isinstance(sizes, Sizes) and (sizes.place,) == state.axes):
        return False
    shape = operation.outputs[0].shape
    return shape.rank is not None and any(size is None and axis not in state.axes for axis, size in enumerate(shape))


def broadcast_shapes(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the shape that two shapes have after broadcasting.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.raw_ops.BroadcastArgs(s0=tf.shape(x), s1=[1, 3]))
    'a shape with the batch size at 0'
    """
    found, rank = [], operation.outputs[0].shape[0]
    for tensor, state in zip(operation.inputs, states, strict=True):
        if isinstance(state, Sizes) and None not in (rank, tensor.shape[0]):
            found.append(state.at(state.place + rank - tensor.shape[0]))
        elif state != SAME:
            return NO_CLAIM
    return found[0] if len({replace(state, origin=None) for state in found}) == 1 else NO_CLAIM


def _spread(flow: Any, operation: Any, state: State, asked: State) -> State:
    """Return the state of a value that is repeated as often as the batch has examples."""
    if not isinstance(asked, Sizes) or isinstance(state, One) or state == NO_CLAIM:
        return state
    shape, axis, rank = operation.inputs[0].shape, asked.place, operation.outputs[0].shape.rank
    own = None if rank is None or shape.rank is None else axis - (rank - shape.rank)
    count = 1 if own is not None and own < 0 else None if own is None else shape[own]
    found = Rows((axis,), outer=1 if asked.times == 1 else None, inner=count)
    if count == 1:
        found = Rows((axis,), outer=asked.times, subset=asked.subset, free=True)
    return scaled_by(flow, operation, found, state)


def tile(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor that is repeated along its axes.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.tile(x, [1, 2]))
    'rows along axis 0'
    >>> shown(lambda x: tf.tile(x, [1, tf.shape(x)[0]]))
    'unknown; Tile pairs the examples of a batch with each other'
    """
    state, often = states
    if not isinstance(state, Rows):
        return _spread(flow, operation, state, often)
    if isinstance(often, Sizes) or _repeats(operation, often, state):
        return flow.couple(operation, PAIRS)
    times = bound_of(flow, operation.inputs[1], state.axis)
    outer = product([state.outer], times if isinstance(times, int) else None)
    return state if times == 1 else replace(state, outer=outer)


def pack(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of several tensors along a new axis.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.stack([x, x], axis=0))
    'rows along axis 1'
    """
    rank, counts = operation.outputs[0].shape.rank, [state for state in states if isinstance(state, Size)]
    if rank == 1 and len(counts) == 1 and all(isinstance(state, (Alike, Size)) for state in states):
        return Sizes(states.index(counts[0]), counts[0].times)
    state = arithmetic.extreme_of(states) or arithmetic.added(flow, operation, states)
    if not isinstance(state, Rows):
        return state
    if rank is None:
        return NO_CLAIM
    axis = operation.get_attr("axis") % rank
    # `added` takes the new axis for the first one. Undo that, and put the new axis at its position.
    return state.at(*(before + (axis <= before) for before in (each - 1 for each in state.axes)))


def unpack(flow: Any, operation: Any, states: Sequence[State]) -> State | list[State]:
    """Return the state of the entries along an axis, each in a tensor of its own.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.unstack(x, axis=1)[0])
    'rows along axis 0'
    """
    state, rank = states[0], operation.inputs[0].shape.rank
    if isinstance(state, Sizes):
        return [size_in(state) if at == state.place else SAME for at in range(len(operation.outputs))]
    if not isinstance(state, Rows):
        return state
    if rank is None:
        return NO_CLAIM
    axis = operation.get_attr("axis") % rank
    if axis in state.axes:
        return flow.couple(operation, POSITION)
    return state.at(*(each - (axis < each) for each in state.axes))


def concat(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of several tensors, one behind the other along an axis.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.concat([x, x], axis=1))
    'rows along axis 0'
    """
    axes, parts = flow.axes_of(operation.inputs[-1], operation.outputs[0].shape.rank), states[:-1]
    before = 0
    for tensor, state in zip(operation.inputs, parts, strict=False):
        if isinstance(state, Sizes):
            return state.at(before + state.place)
        before += tensor.shape[0] if tensor.shape.rank and tensor.shape[0] is not None else 0
    with_rows = [state for state in parts if isinstance(state, Rows)]
    if not with_rows:
        return arithmetic.extreme_of(parts) or arithmetic.added(flow, operation, parts)
    if axes is None or any(state.axes != with_rows[0].axes for state in with_rows):
        return NO_CLAIM
    if axes[0] not in with_rows[0].axes:
        return arithmetic.element_wise(flow, operation, states[:-1])
    if len(with_rows) < len(parts):
        # The largest of a metric's largest value so far and of the examples' values is taken.
        others = arithmetic.extreme_of([state for state in parts if not isinstance(state, Rows)])
        readers = {reader.type for reader in operation.outputs[0].consumers()}
        taken = {"Max" if isinstance(others, Largest) else "Min"}
        return others if others is not None and readers == taken else NO_CLAIM
    inners, subsets = {state.inner for state in with_rows}, {state.subset for state in with_rows}
    known = all(state.outer is not None for state in with_rows) and len(inners) == 1
    outer = sum(state.outer or 0 for state in with_rows) if known else None
    if any(subsets) and len(with_rows) > 1:
        outer = len(with_rows)  # Examples that were chosen by two conditions stand in another order.
    return replace(
        with_rows[0], outer=outer, inner=inners.pop() if len(inners) == 1 else None,
        subset=(*subsets, len(parts)) if any(subsets) else None, free=all(s.free for s in with_rows),
        degree=max(s.degree for s in with_rows),
        # Behind each other, positions of the first part are no positions in the whole.
        stride=OTHER if any(s.stride for s in with_rows) and len(parts) > 1 else with_rows[0].stride,
    )


def split(flow: Any, operation: Any, states: Sequence[State]) -> State | list[State]:
    """Return the state of the parts of a tensor, all of one size or with given sizes.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.split(x, 3, axis=1)[0])
    'rows along axis 0'
    >>> shown(lambda x: (tf.split(x, [1, 2], axis=1)[1], tf.split(tf.shape(x), [1, 1])[1]))
    'rows along axis 0, alike'
    """
    has_sizes = operation.type == "SplitV"
    at, of_axis = (0, 2) if has_sizes else (1, 0)
    state, axes = states[at], flow.axes_of(operation.inputs[of_axis], operation.inputs[at].shape.rank)
    if isinstance(state, Sizes):
        return _of_sizes(operation, state)
    if not isinstance(state, Rows) or (axes is not None and axes[0] not in state.axes):
        return state
    if axes is None:
        return NO_CLAIM
    count = len(operation.outputs)
    if has_sizes and states[1] != SAME and (parts := _cut(flow, operation, state)) is not None:
        return parts
    if has_sizes or (state.outer is not None and state.outer % count):
        return flow.couple(operation, POSITION)
    return NO_CLAIM if state.outer is None else replace(state, outer=state.outer // count)


def _of_sizes(operation: Any, state: Sizes) -> list[State]:
    """Return the states of the parts of a shape: one of them has the batch size."""
    counts: list[Any] = [output.shape[0] if output.shape.rank == 1 else None for output in operation.outputs]
    if None in counts:
        return [NO_CLAIM] * len(counts)
    firsts = [place - count for place, count in zip(accumulate(counts), counts, strict=True)]
    return [part_of_sizes(state, first, count) for first, count in zip(firsts, counts, strict=True)]


def _cut(flow: Any, operation: Any, state: Rows) -> list[State] | None:
    """Return the states of parts that have whole copies of the batch each; None if they do not."""
    bounds = [bound_of(flow, operation.inputs[1], at) for at in range(len(operation.outputs))]
    ends = list(accumulate((size for size in bounds if isinstance(size, Size)), Size.plus))
    firsts: list[Bound] = [0, *ends]
    found = [cut_out(state, first, end) for first, end in zip(firsts, ends, strict=False)]
    parts = [part for part in found if part is not None]
    return parts if len(parts) == len(bounds) else None


def pad(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor with entries added around it.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.pad(x, [[0, 0], [1, 1]]))
    'rows along axis 0'
    """
    state, around = states[0], value_of(operation.inputs[1])
    if isinstance(state, Rows) and (around is None or any(np.any(around[axis]) for axis in state.axes)):
        return NO_CLAIM
    return state


def one_hot(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a one-hot tensor, whose new axis is for the classes.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.one_hot(x, 10), None, dtype="int32")
    'rows along axis 0'
    """
    state, axis = states[0], operation.get_attr("axis")
    if isinstance(states[1], Size):
        return flow.couple(operation, ALONG_EXAMPLES)
    if not isinstance(state, Rows) or axis == -1:
        return arithmetic.alone(flow, operation, state)
    return state.at(*(each + (axis <= each) for each in state.axes))


def looked_up(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of values of an immutable table, by key.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> def found(words):
    ...     table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), 0)
    ...     return table.lookup(words)
    >>> shown(found, None, dtype="string")
    'rows along axis 0'
    """
    return arithmetic.alone(flow, operation, states[1])


RULES: dict[str, Any] = {
    "Transpose": transpose, "ConjugateTranspose": transpose,
    "Reshape": reshape, "ExpandDims": expand, "Squeeze": squeeze, "BroadcastTo": broadcast,
    "BroadcastArgs": broadcast_shapes,
    "Tile": tile, "Pack": pack, "Unpack": unpack, "ConcatV2": concat, "Split": split, "SplitV": split,
    "Pad": pad, "PadV2": pad, "MirrorPad": pad, "OneHot": one_hot, "LookupTableFindV2": looked_up,
    "ZerosLike": alike_in_shape, "OnesLike": alike_in_shape,
}  # fmt: skip
