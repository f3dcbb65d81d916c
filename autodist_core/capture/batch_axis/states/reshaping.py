"""Find the axis along which the examples are after a reshape, and name the axes of products.

In: the state of a tensor, and its shape before and after. Out: the state after. For a batch of B sequences::

    [B, 10, 8] -> [B, 80]       rows along axis 0
    [B, 10, 8] -> [B * 10, 8]   rows along axis 0, 10 consecutive entries for each example
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from autodist_core.capture.batch_axis.states.state import NO_CLAIM, Kind, State


def sizes_of(shape: Any) -> list[int | None] | None:
    """Return a static shape as a list; None if not even the number of axes is known.

    >>> import tensorflow as tf
    >>> sizes_of(tf.TensorShape([None, 3])), sizes_of(tf.TensorShape(None))
    ([None, 3], None)
    """
    return None if shape.rank is None else shape.as_list()


def product(sizes: Sequence[int | None], factor: int | None) -> int | None:
    """Return the product of sizes and a factor; None if one of them is not known.

    >>> product([2, 3], 4), product([2, None], 4)
    (24, None)
    """
    known = [*sizes, factor]
    return None if None in known else prod(size for size in known if size is not None)


def reshaped(state: State, before: Any, after: Any, asked: State) -> State:
    """Return the state of rows after a reshape; `asked` is the state of the shape that the reshape reads.

    The memory has `ahead` runs. Each run has all B examples, with `each` entries for one example. In the result, the
    examples are along the axis with as many entries before it and behind it. If there is no such axis, the examples
    are along several axes.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.batch_axis.states.state import SAME, rows
    >>> before, after = tf.TensorShape([None, 10, 8]), tf.TensorShape([None, 8])
    >>> state = reshaped(rows(0), before, after, SAME)
    >>> state.axes, state.inner
    ((0,), 10)
    >>> asked = State(Kind.SIZES, (1,))
    >>> reshaped(rows(0), tf.TensorShape([None]), tf.TensorShape([None, None]), asked).axes
    (1,)
    """
    sizes, result = sizes_of(before), sizes_of(after)
    if sizes is None or result is None or len(state.axes) != 1:
        return NO_CLAIM
    ahead = product(sizes[: state.axis], state.outer)
    each = product(sizes[state.axis + 1 :], state.inner)
    if asked.kind == Kind.SIZES and asked.axis < len(result):
        # The axis of the result with the batch size is the examples' axis if it has as many entries ahead of it.
        if state.subset == asked.subset:
            ahead, each, result = _solved(ahead, each, result, asked)
        front = product(result[: asked.axis], 1)
        if ahead is not None and ahead == front:
            return state._replace(axes=asked.axes, outer=1, inner=asked.outer)
        if (ahead is None or front is None) and asked.axis == state.axis:
            return state._replace(outer=None, inner=None)
    open_axes = [axis for axis, size in enumerate(result) if size is None]
    if ahead == 1:
        first = next((axis for axis, size in enumerate(result) if size != 1), 0)
        if result and result[first] is None:
            behind = product(result[first + 1 :], 1)
            if behind is None or each is None:
                return state._replace(axes=(first,), outer=1, inner=None)
            if each % behind == 0:
                return state._replace(axes=(first,), outer=1, inner=each // behind)
            return state._replace(axes=(first, first + 1), outer=None, inner=None)
    if len(open_axes) != 1 or ahead is None or each is None:
        return NO_CLAIM
    axis = open_axes[0]
    front, behind = product(result[:axis], 1), product(result[axis + 1 :], 1)
    assert front is not None and behind is not None
    if not front or not behind:
        return NO_CLAIM
    if ahead % front == 0 and each % behind == 0:
        return state._replace(axes=(axis,), outer=ahead // front, inner=each // behind)
    if ahead % front:
        return state._replace(axes=(*range(axis), axis), outer=None, inner=None)
    return state._replace(axes=(axis, *range(axis + 1, len(result))), outer=None, inner=None)


def _solved(
    ahead: int | None, each: int | None, result: list[int | None], asked: State
) -> tuple[int | None, int | None, list[int | None]]:
    """Fill in the one number that is not known, as the size of -1: a reshape keeps the number of entries."""
    others = [size for axis, size in enumerate(result) if axis != asked.axis]
    if asked.outer is None or [ahead, each, *others].count(None) != 1:
        return ahead, each, result
    before = prod(number for number in (ahead, each) if number is not None)
    after = prod((asked.outer, *(size for size in others if size is not None)))
    larger, smaller = (before, after) if None in others else (after, before)
    if not smaller or larger % smaller:
        return ahead, each, result
    number = larger // smaller
    filled = [number if size is None and axis != asked.axis else size for axis, size in enumerate(result)]
    return number if ahead is None else ahead, number if each is None else each, filled


def labels(operation: Any) -> tuple[str, str, str] | None:
    """Return a letter for each axis of a product's factors and result, as in einsum; None if they are not known.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     labels(tf.matmul(tf.ones([2, 3]), tf.ones([4, 3]), transpose_b=True).op)
    ('ik', 'jk', 'ij')
    """
    if operation.type == "Einsum":
        equation = operation.get_attr("equation").decode()
        left, _, result = equation.partition("->")
        factors = left.split(",")
        ranks = [tensor.shape.rank for tensor in (*operation.inputs, operation.outputs[0])]
        if len(factors) != 2 or None in ranks:
            return None
        dots = "ABCDEFGH"
        full = []
        for text, rank in zip((*factors, result), ranks, strict=True):
            spread = rank - len(text.replace("...", ""))
            full.append(text.replace("...", dots[len(dots) - spread :] if spread else ""))
        return full[0], full[1], full[2]
    ranks = [tensor.shape.rank for tensor in operation.inputs]
    if None in ranks:
        return None
    names = ("transpose_a", "transpose_b") if operation.type in ("MatMul", "SparseMatMul") else ("adj_x", "adj_y")
    first, second = (operation.get_attr(name) for name in names)
    dots = "ABCDEFGH"
    spread = [dots[len(dots) - (rank - 2) :] if rank > 2 else "" for rank in ranks]
    longest = max(spread, key=len)
    return spread[0] + ("ki" if first else "ik"), spread[1] + ("jk" if second else "kj"), longest + "ij"
