"""Find the axis along which the examples are after a reshape, and name the axes of products.

In: the state of a tensor, and its shape before and after. Out: the state after. For a batch of B sequences::

    [B, 10, 8] -> [B, 80]       rows along axis 0
    [B, 10, 8] -> [B * 10, 8]   rows along axis 0, 10 consecutive entries for each example
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from autodist_core.capture.batch_axis.states.state import NO_CLAIM, Rows, Sizes, State

_DOTS = "ABCDEFGH"
"""The letters of the axes that an equation has as three dots."""


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


def reshaped(state: Rows, before: Any, after: Any, asked: State) -> State:
    """Return the state of rows after a reshape; `asked` is the state of the shape that the reshape reads.

    The memory has `ahead` runs. Each run has all B examples, with `each` entries for one example. In the result, the
    examples are along the axis with as many entries before it and behind it. If there is no such axis, the examples
    are along several axes.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.batch_axis.states.state import SAME
    >>> before, after = tf.TensorShape([None, 10, 8]), tf.TensorShape([None, 8])
    >>> state = reshaped(Rows(), before, after, SAME)
    >>> state.axes, state.inner
    ((0,), 10)
    >>> both_open = tf.TensorShape([None, None])
    >>> reshaped(Rows(), tf.TensorShape([None]), both_open, Sizes(1)).axes
    (1,)

    A tensor of n texts with t words each has no row for each example in the shape [t, n]:

    >>> reshaped(Rows(), both_open, both_open, Sizes(1))
    Unknown()
    """
    sizes, result = sizes_of(before), sizes_of(after)
    if sizes is None or result is None or len(state.axes) != 1:
        return NO_CLAIM
    ahead = product(sizes[: state.axis], state.outer)
    each = product(sizes[state.axis + 1 :], state.inner)
    if isinstance(asked, Sizes) and asked.place < len(result):
        # The axis of the result with the batch size is the examples' axis if it has as many entries ahead of it.
        if state.subset == asked.subset:
            ahead, each, result = _solved(ahead, each, result, asked)
        front = product(result[: asked.place], 1)
        if ahead is not None and ahead == front:
            return replace(state, axes=(asked.place,), outer=1, inner=asked.times)
        if (ahead is None or front is None) and asked.place == state.axis:
            return replace(state, outer=None, inner=None)
    open_axes = [axis for axis, size in enumerate(result) if size is None]
    first = next((axis for axis, size in enumerate(result) if size != 1), 0)
    # As many entries as there are examples, one behind the other, are not those of one example.
    leads = ahead == 1 and first in open_axes and not (isinstance(asked, Sizes) and asked.place > first)
    axis = first if leads else open_axes[0] if len(open_axes) == 1 else None
    if axis is None:
        return NO_CLAIM
    front, behind = product(result[:axis], 1), product(result[axis + 1 :], 1)
    if leads and (behind is None or each is None):
        return replace(state, axes=(axis,), outer=1, inner=None)
    if ahead is None or each is None or not front or not behind:
        return NO_CLAIM
    if ahead % front == 0 and each % behind == 0:
        return replace(state, axes=(axis,), outer=ahead // front, inner=each // behind)
    axes = range(axis + 1) if ahead % front else range(axis, axis + 2 if leads else len(result))
    return replace(state, axes=tuple(axes), outer=None, inner=None)


def _solved(
    ahead: int | None, each: int | None, result: list[int | None], asked: Sizes
) -> tuple[int | None, int | None, list[int | None]]:
    """Fill in the one number that is not known, as the size of -1: a reshape keeps the number of entries."""
    others = [size for axis, size in enumerate(result) if axis != asked.place]
    if asked.times is None or [ahead, each, *others].count(None) != 1:
        return ahead, each, result
    before = prod(number for number in (ahead, each) if number is not None)
    after = prod((asked.times, *(size for size in others if size is not None)))
    larger, smaller = (before, after) if None in others else (after, before)
    if not smaller or larger % smaller:
        return ahead, each, result
    number = larger // smaller
    filled = [number if size is None and axis != asked.place else size for axis, size in enumerate(result)]
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
    else:
        names = ("transpose_a", "transpose_b") if operation.type in ("MatMul", "SparseMatMul") else ("adj_x", "adj_y")
        first, second = (operation.get_attr(name) for name in names)
        equation = f"...{'ki' if first else 'ik'},...{'jk' if second else 'kj'}->...ij"
    left, _, right = equation.partition("->")
    texts, ranks = [*left.split(","), right], [each.shape.rank for each in (*operation.inputs, operation.outputs[0])]
    if len(texts) != 3 or None in ranks:
        return None
    one, other, result = (
        text.replace("...", _DOTS[len(_DOTS) - rank + len(text.replace("...", "")) :])
        for text, rank in zip(texts, ranks, strict=True)
    )
    return one, other, result
