"""For each operation, how the state of its results follows from those of its inputs: a table to read.

A rule takes the walk, the operation and the states of its inputs. It gives one state for all results, or a list of
them. What mixes the examples is told to the walk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autodist_core.capture.batch_axis import arithmetic, moving, operations, picking, products
from autodist_core.capture.batch_axis.finding import ORDER, WHOLE
from autodist_core.capture.batch_axis.state import (
    ALIKE,
    DISTINCT,
    LARGEST,
    MIXED,
    NO_CLAIM,
    ROWS,
    SAME,
    SIZE,
    SIZES,
    SMALLEST,
    SUM,
    State,
    rows,
)

Rule = Callable[[Any, Any, Sequence[State]], "State | list[State]"]

_RESULT = {"Max": LARGEST, "Any": LARGEST, "Min": SMALLEST, "All": SMALLEST, "Sum": SUM, "Mean": SUM}


_LINEAR = ("Cumsum", "ReverseV2", "Roll")


def constant(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """The same everywhere."""
    return SAME


def reduced(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """A reduction over some axes."""
    state, axes = states[0], flow.axes_of(operation.inputs[1], operation.inputs[0].shape.rank)
    if state.kind == SIZES:
        return SIZE if operation.type == "Prod" else NO_CLAIM
    if state.kind == DISTINCT:
        return State(MIXED, origin=operation)
    if state.kind != ROWS:
        same = operation.type in ("Sum", "Mean") or state.kind in (LARGEST, SMALLEST)
        return state if same else arithmetic.element_wise(flow, operation, [state])
    if axes is None:
        return NO_CLAIM
    left = [axis for axis in state.axes if axis not in axes]
    if len(left) < len(state.axes):
        if left:
            flow.couple(operation, ORDER, operation)
            return NO_CLAIM
        kind = _RESULT.get(operation.type, MIXED)
        if state.subset and operation.type == "Mean":
            kind = MIXED
        degree = state.degree + (1 if operation.type == "Sum" else 0) if kind == SUM else 0
        return State(kind, degree=degree, origin=operation)
    if operation.get_attr("keep_dims"):
        return state
    return state.at(*(axis - sum(other < axis for other in axes) for axis in state.axes))


def along_last(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """What is computed along the last axis, such as a softmax."""
    rank = operation.inputs[0].shape.rank
    return _along(flow, operation, states, None if rank is None else [rank - 1])


def along(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """What is computed along axes that the second input names, such as a cumulative sum."""
    return _along(flow, operation, states, flow.axes_of(operation.inputs[1], operation.inputs[0].shape.rank))


def _along(flow: Any, operation: Any, states: Sequence[State], axes: Any) -> State:
    if states[0].kind == SUM and operation.type in _LINEAR:
        return states[0]
    if states[0].kind == ROWS and axes is not None and set(axes) & set(states[0].axes):
        flow.couple(operation, ORDER, operation)
        return NO_CLAIM
    return _alone(flow, operation, states[0])


def _alone(flow: Any, operation: Any, state: State) -> State:
    return state if state.kind == ROWS else arithmetic.element_wise(flow, operation, [state])


def arg_extreme(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """The position of an extreme along an axis, which goes away."""
    axes = flow.axes_of(operation.inputs[1], operation.inputs[0].shape.rank)
    if states[0].kind == ROWS and axes is not None and axes[0] in states[0].axes:
        return State(MIXED, origin=operation)
    if states[0].kind == ROWS and axes is not None:
        return states[0].at(*(axis - (axes[0] < axis) for axis in states[0].axes))._replace(inner=None)
    return NO_CLAIM if axes is None else _alone(flow, operation, states[0])


def roll(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """A roll, whose axes are the third input."""
    axes = flow.axes_of(operation.inputs[2], operation.inputs[0].shape.rank)
    return _along(flow, operation, states, axes)


def shuffle(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """A random order along the first axis."""
    return _along(flow, operation, states, [0])


def reverse_sequence(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """A part of an axis in reverse; which part, each example says."""
    return _along(flow, operation, states, [operation.get_attr("seq_dim")])


def by_example(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """An operation that treats what stands along the first axis one by one: a convolution, a pooling."""
    state = states[0]
    if state.kind == ROWS and state.axes != (0,):
        return NO_CLAIM
    for other in states[1:]:
        if state.kind == ROWS and other.couples:
            flow.couple(other.origin, WHOLE, operation)
    if state.kind != ROWS:
        return arithmetic.element_wise(flow, operation, [s for s in states if s.kind != ROWS])
    return state._replace(outer=1 if state.outer == 1 else None, inner=1 if state.inner == 1 else None)


def transposed(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """A transposed convolution of the third input; also what the gradient of a convolution is."""
    return states[2] if states[2].kind == ROWS and states[2].axes == (0,) else NO_CLAIM


def of_matrices(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """An operation on the matrices of the last axes: examples that stand along these are not apart."""
    rank, own = operation.inputs[0].shape.rank, operation.outputs[0].shape.rank
    if states[0].kind == ROWS and (rank is None or own is None or max(states[0].axes) >= min(rank, own) - 1):
        return NO_CLAIM
    return _alone(flow, operation, states[0])


def batch_norm(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """TensorFlow's batch normalization, with the batch's statistics in training."""
    if states[0].kind == ROWS and operation.get_attr("is_training"):
        flow.couple(operation, WHOLE, operation)
    return _alone(flow, operation, states[0])


def cross_entropy(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """The cross-entropy of logits and labels: a number for each row, and a gradient."""
    if all(state.kind != ROWS for state in states):
        return [arithmetic.element_wise(flow, operation, states)] * 2
    if any(state.kind == ROWS and state.axes != (0,) for state in states):
        flow.couple(operation, ORDER, operation)
        return [NO_CLAIM] * 2
    return [next(state for state in states if state.kind == ROWS)] * 2


def shape(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """The shapes of tensors."""
    found = []
    for state in states:
        if state.kind == ROWS and len(state.axes) == 1:
            found.append(State(SIZES, state.axes, origin=operation if state.subset else None))
        else:
            found.append(SAME if state.kind == ALIKE else NO_CLAIM)
    return found


def size(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """The number of entries."""
    if states[0].kind != ROWS:
        return NO_CLAIM
    return State(SUM, degree=1, origin=operation if states[0].subset else None)


def drawn(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """A new tensor of the shape that the first input says: examples stand where the shape has the batch size."""
    return filled(flow, operation, states[:1])


def filled(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """A constant of some shape."""
    value = states[1] if len(states) > 1 else SAME
    if value.kind != ALIKE:
        return value
    return rows(states[0].axes[0]) if states[0].kind == SIZES else SAME


def counted(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """The numbers from 0 on: positions of examples, where there are as many."""
    if states[1].is_size or states[0].is_size:
        return rows(0, place=True)
    return SAME if all(state.kind == ALIKE for state in states) else NO_CLAIM


def chosen(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Entries of two tensors, by a condition."""
    condition, *values = states
    if [tensor.op.type for tensor in operation.inputs[:2]] == ["Less", "AddV2"] and values[1].kind in (ALIKE, ROWS):
        # How Keras counts negative indices from the end.
        return values[1]
    if condition.couples and all(state.kind != ROWS for state in values):
        return State(MIXED, origin=condition.origin)
    if condition.kind == ALIKE and all(state.kind in (ALIKE, SUM) for state in values):
        return arithmetic.added(flow, operation, states)
    if condition.kind == ALIKE:
        reduced_kinds = {state.kind for state in values} - {ALIKE}
        if len(reduced_kinds) == 1 and reduced_kinds <= {LARGEST, SMALLEST}:
            return next(state for state in values if state.kind != ALIKE)
    return arithmetic.element_wise(flow, operation, states)


def positions(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """The positions at which a condition holds."""
    state = states[0]
    if state.kind != ROWS:
        return SAME if state.kind == ALIKE else NO_CLAIM
    return State(ROWS, (0,), outer=None, inner=None, place=True, subset=True)


def unique(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Each entry once, and for each entry its position there."""
    others = [NO_CLAIM] * (len(operation.outputs) - 2)
    if states[0].kind != ROWS:
        state = SAME if states[0].kind == ALIKE else NO_CLAIM
        return [state, state, *others]
    return [State(DISTINCT, origin=operation), states[0]._replace(place=True), *others]


RULES: dict[str, Rule] = {
    **dict.fromkeys(operations.ELEMENT_WISE, arithmetic.element_wise),
    **dict.fromkeys(operations.SAME, arithmetic.same),
    **dict.fromkeys(operations.CONSTANT, constant),
    **dict.fromkeys(operations.BY_EXAMPLE, by_example),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), transposed),
    **dict.fromkeys(operations.OF_MATRICES, of_matrices),
    **dict.fromkeys(operations.DRAWS, drawn),
    **dict.fromkeys(("Add", "AddV2", "AddN", "Sub"), arithmetic.added),
    "Mul": arithmetic.multiplied,
    "MulNoNan": arithmetic.multiplied,
    **dict.fromkeys(("RealDiv", "Div", "DivNoNan"), arithmetic.divided),
    **dict.fromkeys(("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"), arithmetic.compared),
    **dict.fromkeys(("Maximum", "Minimum"), arithmetic.larger),
    **dict.fromkeys(("Select", "SelectV2"), chosen),
    **dict.fromkeys(("Sum", "Mean", "Max", "Min", "Prod", "Any", "All", "EuclideanNorm"), reduced),
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopK", "TopKV2", "NthElement"), along_last),
    **dict.fromkeys(("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2"), along),
    **dict.fromkeys(("ArgMax", "ArgMin"), arg_extreme),
    "Roll": roll,
    "RandomShuffle": shuffle,
    "ReverseSequence": reverse_sequence,
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), batch_norm),
    **dict.fromkeys(("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), cross_entropy),
    **dict.fromkeys(("Shape", "ShapeN"), shape),
    "Size": size,
    "Fill": filled,
    "Range": counted,
    "Where": positions,
    **dict.fromkeys(("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"), unique),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"), products.product),
    **moving.RULES,
    **picking.RULES,
}
"""The rule of each operation. What is not in it is not known to treat examples one by one."""
