"""The rule of each type of operation: how the states of its results follow from the states of its inputs.

In: the walk, an operation and the states of its inputs. Out: one state for all results, or a list of states. A rule
tells the walk when the operation mixes examples. For `x` with the examples along its first axis::

    "Max"       reduced       Max(x, axis 0)     the largest value over the examples
                              Max(x, axis 1)     rows along axis 0
    "Softmax"   along_last    Softmax(x)         rows along axis 0; a coupling if x has one axis only
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autodist_core.capture.batch_axis import arithmetic, moving, operations, picking, products, ragged
from autodist_core.capture.batch_axis.constants import value_of
from autodist_core.capture.batch_axis.finding import ALONG_EXAMPLES, BATCH_VALUE
from autodist_core.capture.batch_axis.places import OTHER
from autodist_core.capture.batch_axis.reshaping import product, sizes_of
from autodist_core.capture.batch_axis.state import (
    ALIKE,
    DISTINCT,
    LARGEST,
    MIXED,
    NO_CLAIM,
    NUMBER,
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
    """Return the state of a value that is equal on all replicas."""
    return SAME


def reduced(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a reduction over some axes."""
    state, axes = states[0], flow.axes_of(operation.inputs[1], operation.inputs[0].shape.rank)
    if state.kind == SIZES:
        if operation.inputs[0].shape.num_elements() == 1:
            return SIZE._replace(outer=state.outer, origin=state.origin)
        return SIZE._replace(outer=None) if operation.type == "Prod" else State(NUMBER, origin=operation)
    if state.kind == DISTINCT:
        return State(MIXED, origin=operation)
    if state.kind != ROWS:
        one_entry = operation.inputs[0].shape.num_elements() == 1
        same = state.kind == _RESULT.get(operation.type) or one_entry
        return state if same else arithmetic.element_wise(flow, operation, [state])
    if axes is None:
        return NO_CLAIM
    left = [axis for axis in state.axes if axis not in axes]
    if len(left) < len(state.axes):
        if left:
            flow.couple(operation, ALONG_EXAMPLES, operation)
            return NO_CLAIM
        kind = _RESULT.get(operation.type, MIXED)
        if state.subset and operation.type == "Mean":
            kind = MIXED
        degree = state.degree + (1 if operation.type == "Sum" else 0) if kind == SUM else 0
        return State(kind, degree=degree, origin=operation)
    if operation.get_attr("keep_dims"):
        return state
    return state.at(*(axis - sum(other < axis for other in axes) for axis in state.axes))


def half_of_squares(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of half of the sum of all entries' squares."""
    if states[0].kind == ROWS and not states[0].degree and not states[0].subset:
        return State(SUM, degree=1, origin=operation)
    return arithmetic.element_wise(flow, operation, states)


def along_last(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a function along the last axis, such as a softmax."""
    rank = operation.inputs[0].shape.rank
    return _along(flow, operation, states, None if rank is None else [rank - 1])


def along(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a function along the axes of the second input, such as a cumulative sum."""
    return _along(flow, operation, states, flow.axes_of(operation.inputs[1], operation.inputs[0].shape.rank))


def _along(flow: Any, operation: Any, states: Sequence[State], axes: Any) -> State:
    if states[0].kind == SUM and operation.type in _LINEAR:
        return states[0]
    if states[0].kind == ROWS and axes is not None and set(axes) & set(states[0].axes):
        flow.couple(operation, ALONG_EXAMPLES, operation)
        return NO_CLAIM
    return _alone(flow, operation, states[0])


def _alone(flow: Any, operation: Any, state: State) -> State:
    return state if state.kind == ROWS else arithmetic.element_wise(flow, operation, [state])


def arg_extreme(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the position of the largest or smallest entry along an axis."""
    axes = flow.axes_of(operation.inputs[1], operation.inputs[0].shape.rank)
    if states[0].kind == ROWS and axes is not None and axes[0] in states[0].axes:
        return State(MIXED, origin=operation)
    if states[0].kind == ROWS and axes is not None:
        return states[0].at(*(axis - (axes[0] < axis) for axis in states[0].axes))._replace(inner=None)
    return NO_CLAIM if axes is None else _alone(flow, operation, states[0])


def roll(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor rolled along the axes of the third input."""
    axes = flow.axes_of(operation.inputs[2], operation.inputs[0].shape.rank)
    return _along(flow, operation, states, axes)


def shuffle(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor in random order along its first axis."""
    return _along(flow, operation, states, [0])


def reverse_sequence(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of sequences that are reversed up to a length of each example."""
    return _along(flow, operation, states, [operation.get_attr("seq_dim")])


def by_example(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of an operation that treats the entries along the first axis one by one, as a convolution."""
    state = states[0]
    if state.kind == ROWS and state.axes != (0,):
        return NO_CLAIM
    if state.kind == ROWS:
        flow.couple_values(states[1:], operation)
    else:
        return arithmetic.element_wise(flow, operation, [s for s in states if s.kind != ROWS])
    return state._replace(outer=1 if state.outer == 1 else None, inner=1 if state.inner == 1 else None)


def transposed(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a transposed convolution of the third input, which a convolution's gradient is, too."""
    return states[2] if states[2].kind == ROWS and states[2].axes == (0,) else NO_CLAIM


def of_matrices(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of an operation on the matrices of the last axes: it mixes examples along these axes."""
    return _of_last_axes(flow, operation, states, 2)


def of_vectors(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of an operation on the vectors of the last axis: it mixes examples along this axis."""
    return _of_last_axes(flow, operation, states, 1)


def _of_last_axes(flow: Any, operation: Any, states: Sequence[State], count: int) -> State:
    with_rows = [state for state in states if state.kind == ROWS]
    if not with_rows:
        return arithmetic.element_wise(flow, operation, states)
    for tensor, state in zip(operation.inputs, states, strict=True):
        if state.kind != ROWS:
            continue
        rank = tensor.shape.rank
        if rank is None or state.axes != with_rows[0].axes:
            return NO_CLAIM
        if max(state.axes) >= rank - count:
            flow.couple(operation, ALONG_EXAMPLES, operation)
            return NO_CLAIM
    flow.couple_values(states, operation)
    return with_rows[0]


def batch_norm(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of TensorFlow's batch normalization, which uses the batch's statistics in training."""
    if states[0].kind == ROWS and operation.get_attr("is_training"):
        flow.couple(operation, BATCH_VALUE, operation)
    return _alone(flow, operation, states[0])


def cross_entropy(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the cross-entropy of logits and labels, and of its gradient."""
    if all(state.kind != ROWS for state in states):
        return [arithmetic.element_wise(flow, operation, states)] * 2
    if any(state.kind == ROWS and state.axes != (0,) for state in states):
        flow.couple(operation, ALONG_EXAMPLES, operation)
        return [NO_CLAIM] * 2
    return [next(state for state in states if state.kind == ROWS)] * 2


def shape(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the shapes of tensors."""
    found = []
    for state in states:
        if state.kind == ROWS and len(state.axes) == 1:
            found.append(State(SIZES, state.axes, outer=state.each, origin=operation if state.subset else None))
        else:
            found.append(SAME if state.kind == ALIKE else NO_CLAIM)
    return found


def size(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the number of entries of a tensor."""
    if states[0].kind == DISTINCT:
        return State(MIXED, origin=operation)
    if states[0].kind != ROWS:
        return NO_CLAIM
    return State(
        SUM, degree=1, outer=product(_others(operation.inputs[0].shape, states[0].axes), states[0].each),
        origin=operation if states[0].subset else None,
    )


def _others(shape: Any, axes: Sequence[int]) -> list[int | None]:
    sizes = sizes_of(shape)
    return [None] if sizes is None else [size for axis, size in enumerate(sizes) if axis not in axes]


def drawn(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of random numbers: examples are along the axis whose size is the batch size."""
    return filled(flow, operation, states[:1])


def filled(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a tensor that is filled with one value."""
    value = states[1] if len(states) > 1 else SAME
    if value.kind != ALIKE:
        return value
    if states[0].kind == SIZES:
        return rows(states[0].axes[0], outer=states[0].outer)
    return State(NUMBER, origin=states[0].origin) if states[0].couples else SAME


def counted(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the numbers from 0 on: the positions of the examples if their count is the batch size."""
    if all(state.kind == ALIKE for state in states):
        return SAME
    first, _, step = (value_of(tensor) for tensor in operation.inputs)
    limit = states[1]
    if limit.is_size and limit.degree == 1 and states[0].kind == ALIKE and first == 0 and step == 1:
        stride = 1 if limit.outer == 1 else OTHER
        return rows(0, outer=1 if limit.outer == 1 else None, inner=1 if limit.outer == 1 else None,
                    stride=stride, origin=operation)
    if all(state.kind == ALIKE or state.is_size or state.kind == NUMBER for state in states):
        return State(NUMBER, origin=operation)
    return NO_CLAIM


def chosen(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of entries of two tensors that a condition chooses."""
    condition, *values = states
    if [tensor.op.type for tensor in operation.inputs[:2]] == ["Less", "AddV2"] and values[1].kind in (ALIKE, ROWS):
        # Keras counts negative indices from the end in this way.
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
    """Return the state of the positions at which a condition holds."""
    state = states[0]
    if state.kind != ROWS:
        return SAME if state.kind == ALIKE else NO_CLAIM
    if state.axes != (0,):
        return NO_CLAIM
    return State(ROWS, (0,), outer=None, inner=None, stride=1, origin=operation, subset=True)


def unique(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the distinct entries, and of the position of each entry among them."""
    others = [NO_CLAIM] * (len(operation.outputs) - 2)
    if states[0].kind != ROWS:
        state = SAME if states[0].kind == ALIKE else NO_CLAIM
        return [state, state, *others]
    return [State(DISTINCT, origin=operation), states[0]._replace(stride=OTHER, origin=operation), *others]


RULES: dict[str, Rule] = {
    **dict.fromkeys(operations.ELEMENT_WISE, arithmetic.element_wise),
    **dict.fromkeys(operations.SAME, arithmetic.same),
    **dict.fromkeys(operations.CONSTANT, constant),
    **dict.fromkeys(operations.BY_EXAMPLE, by_example),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), transposed),
    **dict.fromkeys(operations.OF_MATRICES, of_matrices),
    **dict.fromkeys(operations.OF_VECTORS, of_vectors),
    **dict.fromkeys(operations.DRAWS, drawn),
    **dict.fromkeys(("Add", "AddV2", "AddN", "Sub"), arithmetic.added),
    "Mul": arithmetic.multiplied,
    "MulNoNan": arithmetic.multiplied,
    **dict.fromkeys(("RealDiv", "Div", "DivNoNan"), arithmetic.divided),
    **dict.fromkeys(("Maximum", "Minimum"), arithmetic.larger),
    **dict.fromkeys(("Select", "SelectV2"), chosen),
    **dict.fromkeys(("Sum", "Mean", "Max", "Min", "Prod", "Any", "All", "EuclideanNorm"), reduced),
    "L2Loss": half_of_squares,
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
    **ragged.RULES,
    **moving.RULES,
    **picking.RULES,
}
"""The rule of each type of operation. Nothing is known of a type that is not in it."""
