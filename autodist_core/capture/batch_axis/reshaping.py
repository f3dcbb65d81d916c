"""Where the examples stand after a reshape, and in products of several axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from autodist_core.capture.batch_axis.state import NO_CLAIM, ROWS, SUM, State


def sizes_of(shape: Any) -> list[int | None] | None:
    """A static shape as a list; None where not even the number of axes is known."""
    return None if shape.rank is None else shape.as_list()


def product(sizes: Sequence[int | None], factor: int | None) -> int | None:
    """The product of sizes and a factor; None where one of them is not known."""
    known = [*sizes, factor]
    return None if None in known else prod(size for size in known if size is not None)


def reshaped(state: State, before: Any, after: Any, told: State) -> State:
    """The state of rows after a reshape; `told` is the state of the shape that was asked for.

    The examples stand in the memory as `ahead` runs of B times `each` entries. They stand along the axis of the result
    that has as many entries before and behind it; where there is none, the reshape tears them apart.
    """
    sizes, result = sizes_of(before), sizes_of(after)
    if sizes is None or result is None or len(state.axes) != 1:
        return NO_CLAIM
    if told.axes and told.kind != ROWS:
        axis = told.axes[0]
        if axis < len(result):
            return state._replace(axes=(axis,), outer=1 if axis == 0 else None, inner=None)
    ahead = product(sizes[: state.axis], state.outer)
    each = product(sizes[state.axis + 1 :], state.inner)
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


def labels(operation: Any) -> tuple[str, str, str] | None:
    """The axes of a product's factors and result by letter, as an einsum has them; None where they are not known."""
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


def times(one: State, other: State) -> State:
    """The sum over the examples of products of two rows."""
    return State(SUM, degree=1 + one.degree + other.degree)
