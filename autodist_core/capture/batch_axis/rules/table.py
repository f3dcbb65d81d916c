"""The rule of each type of operation: how the states of its results follow from the states of its inputs.

In: the walk, an operation and the states of its inputs. Out: one state for all results, or a list of states. A rule
tells the walk when the operation mixes examples. For `x` with the examples along its first axis::

    "Max"       reduced       Max(x, axis 0)     the largest value over the examples
                              Max(x, axis 1)     rows along axis 0
    "Sum"       reduced       Sum(x)             a sum over the examples
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from autodist_core.capture.batch_axis.rules import along_axes, arithmetic, counting, moving, picking, products, ragged
from autodist_core.capture.batch_axis.states import operations
from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.finding import ALONG_EXAMPLES
from autodist_core.capture.batch_axis.states.layout import choice_of
from autodist_core.capture.batch_axis.states.reduced import EXTREMES, Linear, Mixed, Number, Size, Sum, size_in
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, OTHER, SAME, Alike, Distinct, Rows, Sizes, State

Rule = Callable[[Any, Any, Sequence[State]], "State | list[State]"]

_KEPT: dict[str, type[State]] = {**EXTREMES, "Sum": Linear, "Mean": Linear}
"""The values of the whole batch of which a reduction makes such a value again."""


def reduced(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of a reduction over some axes.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: (tf.reduce_max(x, axis=0), tf.reduce_max(x, axis=1)))
    'the largest value over the examples, rows along axis 0'
    """
    state, axes = states[0], flow.axes_of(operation.inputs[1], operation.inputs[0].shape.rank)
    if isinstance(state, Sizes):
        if operation.inputs[0].shape.num_elements() == 1:
            return size_in(state)
        return Size(times=None) if operation.type == "Prod" else Number(operation)
    if isinstance(state, Distinct):
        return Mixed(operation)
    if not isinstance(state, Rows):
        one_entry = operation.inputs[0].shape.num_elements() == 1
        kept = one_entry or isinstance(state, _KEPT.get(operation.type, ()))
        return state if kept else arithmetic.element_wise(flow, operation, [state])
    if axes is None:
        return NO_CLAIM
    left = [axis for axis in state.axes if axis not in axes]
    if len(left) < len(state.axes):
        if left:
            return flow.couple(operation, ALONG_EXAMPLES)
        if operation.type == "Sum":
            return Sum(state.degree + 1, operation)
        if operation.type == "Mean" and not state.subset:
            return Sum(state.degree, operation)
        return EXTREMES.get(operation.type, Mixed)(operation)
    if operation.get_attr("keep_dims"):
        return state
    return state.at(*(axis - sum(other < axis for other in axes) for axis in state.axes))


def half_of_squares(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of half of the sum of all entries' squares.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.nn.l2_loss(x))
    'a sum over the examples'
    """
    state = states[0]
    if isinstance(state, Rows) and not state.degree and not state.subset:
        return Sum(1, operation)
    return arithmetic.element_wise(flow, operation, states)


def chosen(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of entries of two tensors that a condition chooses.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.where(x > 0, x, 0.0))
    'rows along axis 0'
    """
    condition, *values = states
    if isinstance(values[1], (Alike, Rows)) and _counts_from_the_end(operation):
        return values[1]
    if values[0].stride > 0 and _is_of_several(flow, operation):
        return values[0]
    if condition.couples and not any(isinstance(state, Rows) for state in values):
        return Mixed(condition.origin)
    if condition == SAME and all(isinstance(state, (Alike, Linear)) for state in values):
        return arithmetic.added(flow, operation, states)
    if condition == SAME and (extreme := arithmetic.extreme_of(values)) is not None:
        return extreme
    return arithmetic.element_wise(flow, operation, states)


def _counts_from_the_end(operation: Any) -> bool:
    """Whether indices are chosen as Keras does it: `where(index < 0, index + size, index)`."""
    condition, other, index = operation.inputs
    return (
        index.dtype.is_integer and condition.op.type == "Less" and condition.op.inputs[0] is index
        and value_of(condition.op.inputs[1]) is not None and not np.any(value_of(condition.op.inputs[1]))
        and other.op.type == "AddV2" and any(tensor is index for tensor in other.op.inputs)
    )


def _is_of_several(flow: Any, operation: Any) -> bool:
    """Whether positions are chosen of several examples, and 0 of one, which is the position of that one."""
    condition, _, zero = operation.inputs
    if condition.op.type != "Greater" or not np.array_equal(value_of(zero), 0):
        return False
    size, one = flow.state_of(condition.op.inputs[0]), value_of(condition.op.inputs[1])
    return size == Size() and np.array_equal(one, 1)


def positions(flow: Any, operation: Any, states: Sequence[State]) -> State:
    """Return the state of the positions at which a condition holds.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.where(x[:, 0] > 0))
    'rows along axis 0'
    """
    state = states[0]
    if not isinstance(state, Rows) or state.axes != (0,):
        return NO_CLAIM
    return Rows(outer=None, inner=None, stride=1, origin=operation, subset=choice_of(operation.inputs[0]))


def unique(flow: Any, operation: Any, states: Sequence[State]) -> list[State]:
    """Return the states of the distinct entries, and of the position of each entry among them.

    >>> from autodist_core.capture.batch_axis.trial import shown, tf
    >>> shown(lambda x: tf.unique(x[:, 0]))
    'distinct, rows along axis 0'
    """
    entries, others = states[0], [NO_CLAIM] * (len(operation.outputs) - 2)
    if isinstance(entries, Rows):
        return [Distinct(operation), replace(entries, stride=OTHER, origin=operation), *others]
    return [*[SAME if entries == SAME else NO_CLAIM] * 2, *others]


RULES: dict[str, Rule] = {
    **dict.fromkeys(operations.ELEMENT_WISE, arithmetic.element_wise),
    **dict.fromkeys(operations.SAME, arithmetic.same),
    **dict.fromkeys(operations.CONSTANT, lambda flow, operation, states: SAME),
    **dict.fromkeys(operations.BY_EXAMPLE, along_axes.by_example),
    **dict.fromkeys(operations.OF_VECTORS, partial(along_axes.of_last_axes, count=1)),
    **dict.fromkeys(operations.OF_MATRICES, partial(along_axes.of_last_axes, count=2)),
    **dict.fromkeys(operations.OF_IMAGES, partial(along_axes.of_last_axes, count=3)),
    **dict.fromkeys(operations.QUANTIZING, along_axes.quantized),
    **dict.fromkeys(("BatchToSpaceND", "SpaceToBatchND"), along_axes.space_and_batch),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), along_axes.transposed),
    **dict.fromkeys(operations.DRAWS, counting.filled),
    **dict.fromkeys(("Add", "AddV2", "AddN", "Sub"), arithmetic.added),
    **dict.fromkeys(("Mul", "MulNoNan"), partial(arithmetic.scaled, power=1)),
    **dict.fromkeys(("RealDiv", "Div", "DivNoNan"), partial(arithmetic.scaled, power=-1)),
    **dict.fromkeys(("Maximum", "Minimum", "LogicalOr", "LogicalAnd"), arithmetic.larger),
    **dict.fromkeys(("Select", "SelectV2"), chosen),
    **dict.fromkeys(("Sum", "Mean", "Max", "Min", "Prod", "Any", "All", "EuclideanNorm"), reduced),
    "L2Loss": half_of_squares,
    **dict.fromkeys(along_axes.ALONG_LAST, along_axes.along),
    **dict.fromkeys(
        ("Cumsum", "Cumprod", "CumulativeLogsumexp", "RandomShuffle", "ReverseSequence", "ReverseV2", "Roll"),
        along_axes.along,
    ),
    **dict.fromkeys(("ArgMax", "ArgMin"), along_axes.arg_extreme),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), along_axes.batch_norm),
    **dict.fromkeys(("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), along_axes.cross_entropy),
    **dict.fromkeys(("Shape", "ShapeN"), counting.shape),
    "Size": counting.size,
    "Fill": counting.filled,
    "Range": counting.counted,
    "Where": positions,
    **dict.fromkeys(("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"), unique),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"), products.product),
    **ragged.RULES,
    **moving.RULES,
    **picking.RULES,
}
"""The rule of each type of operation. Nothing is known of a type that is not in it."""
