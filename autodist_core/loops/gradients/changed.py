"""Let what a replica adds to its gradient count on each replica, when an optimizer gets the sum over the replicas.

In: a value that is added up over the replicas, while a function of `run()` is traced, and the gradients' markers.
Behind a marker is the sum of the replicas' gradients already. Out: what counts once in this sum, and on each replica
under tf.distribute::

    gradient + 0.01 * weight             0.01 * weight: counts as often as there are replicas
    2.0 * gradient                       nothing
    clip_by_norm(gradient, 1.0)          not known: the clipped sum is not the sum of clipped gradients

The first two then have tf.distribute's numbers. For the last one there is a note, which names the operation.
"""

from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from autodist_core.capture import computed_from, copied, reached_from, sources
from autodist_core.capture.batch_axis import sentences
from autodist_core.capture.gradients.recording import Differentiation
from autodist_core.capture.tape import draws
from autodist_core.plan import INEXACT
from autodist_core.step.op_types import WITHOUT_VALUES

_SUMS = {"Add", "AddV2", "AddN", "Sub", "Neg"}
_LINEAR = {
    "Identity": 0, "Cast": 0, "Reshape": 0, "Squeeze": 0, "ExpandDims": 0, "Transpose": 0, "StridedSlice": 0,
    "Slice": 0, "Sum": 0, "Mean": 0, "UnsortedSegmentSum": 0, "RealDiv": 0, "DivNoNan": 0, "CheckNumerics": 0,
    "BroadcastTo": 0, "Tile": 0, "GatherV2": 0, "Split": 1, "SplitV": 0, "Unpack": 0, "StopGradient": 0,
}  # fmt: skip
"""Operations that are linear in one input, and the position of that input."""
_BILINEAR = {"Mul", "MatMul", "BatchMatMulV2"}
_VALUES = {"ConcatV2": slice(-1), "Pack": slice(None), "Select": slice(1, None), "SelectV2": slice(1, None)}
"""Operations that are linear in several inputs together, and where these are."""
_REDUCTIONS = {"Sum", "Mean", "Prod", "Max", "Min", "EuclideanNorm", "L2Loss"}


class NotLinear(Exception):
    """An operation changes a gradient so that the sum over the replicas is not the changed sum.

    >>> NotLinear(None, is_added=True).is_added
    True
    """

    def __init__(self, operation: Any, is_added: bool = False) -> None:
        super().__init__(operation)
        self.operation = operation
        self.is_added = is_added
        """Whether the value of the operation is added to a gradient, and is another one on each replica."""

    @property
    def note(self) -> str:
        """What the plan says of it."""
        named = sentences.named(self.operation)
        if self.is_added:
            return (
                f"{INEXACT}: what {named} gives is added to a gradient before apply adds gradients up over the "
                "replicas, and each replica has its own: here one counts, and under tf.distribute their sum"
            )
        of_optimizer = any(frame.name == "apply" for frame in self.operation.traceback or ())
        return (
            f"{INEXACT}: {named} changes gradients before apply adds them up over the replicas: here it is given their "
            "sum, and under tf.distribute each replica's own gradient. "
        ) + (
            "It belongs to apply, which gives one device's numbers here" if of_optimizer else
            'Add them up first: give it get_replica_context().all_reduce("SUM", gradients), and give apply the result '
            "divided by num_replicas_in_sync; both are the same then"
        )


class Changed:
    """What becomes of the gradients that a function has computed so far, and of `sums` of them that are read.

    >>> from autodist_core.capture import Marked
    >>> with tf.Graph().as_default():
    ...     gradient, weight = tf.identity(3.0), tf.constant(2.0, name="weight")
    ...     decayed, scaled, squared = gradient / 2.0 + weight, 4.0 * gradient, tf.square(gradient)
    ...     changed = Changed([Differentiation((), (), (Marked(None, 0, gradient),))], batch=())
    ...     changed.added(decayed).op.name, changed.added(scaled) is None
    ...     changed.note(squared).partition(":")[0]
    ('weight', True)
    'not exact'
    """

    def __init__(self, found: Sequence[Differentiation], batch: Collection[str], sums: Sequence[Any] = ()) -> None:
        markers = [*(marker for call in found for marker in call.markers), *sums]
        self._markers = {marker.op.name for marker in markers}
        self._batch = batch
        """The placeholders of each replica's own values, by name."""
        self._behind = computed_from(markers)
        """The operations that compute with gradients."""
        self._parts: dict[str, Any] = {}

    def added(self, value: Any) -> Any:
        """The part of a value that is not computed from gradients; None if there is none."""
        return self._part(value) if value.op.name in self._behind else None

    def note(self, value: Any, once: bool = False) -> str:
        """The note on a value that counts otherwise than under tf.distribute; nothing for other values.

        With `once`, what is added to a gradient counts once.
        """
        try:
            if self.added(value) is not None and once:
                return (
                    f"{INEXACT}: {sentences.named(value.op)} adds to a gradient, and counts once: an optimizer that "
                    "accumulates or scales gradients gets it. Under tf.distribute it counts on each replica: multiply "
                    "what is added by num_replicas_in_sync"
                )
        except NotLinear as found:
            return found.note
        return ""

    def note_of_rows(self, values: Any) -> str:
        """The note on the rows of a sparse gradient. The sum has all replicas' rows, so each row counts by itself."""
        reached = reached_from([values.op], sources, stop=lambda each: each.name not in self._behind)
        for operation in reached.values():
            if operation.type in _REDUCTIONS and operation.name not in self._markers and _takes_all_rows(operation):
                return NotLinear(operation).note
        return ""

    def _part(self, tensor: Any) -> Any:
        """The part of a tensor that is computed without gradients, or None if it is zero."""
        operation = tensor.op
        if operation.name in self._markers:
            return None
        if operation.name not in self._behind:
            if any(map(self._is_own, reached_from([operation], sources).values())):
                raise NotLinear(operation, is_added=True)
            return tensor
        if tensor.name not in self._parts:
            self._parts[tensor.name] = self._made(tensor)
        return self._parts[tensor.name]

    def _is_own(self, operation: Any) -> bool:
        """Whether each replica has another value. Numbers that an explicit seed gives are the same on all."""
        seeds = reached_from(sources(operation), sources).values()
        explicit = operation.type.startswith("Stateless") and not any(each.op_def.is_stateful for each in seeds)
        return operation.name in self._batch or (draws(operation) and not explicit)

    def _made(self, tensor: Any) -> Any:
        operation = tensor.op
        inputs, kind = list(operation.inputs), operation.type
        if kind in WITHOUT_VALUES:
            return None if kind == "ZerosLike" else tensor
        behind = [position for position, each in enumerate(inputs) if each.op.name in self._behind]
        if kind == "UnsortedSegmentSum" and behind == [0, 1] and self._part(inputs[0]) is None:
            return None  # a dense gradient of rows, of which the replicas have different ones
        if kind == "IdentityN":
            return self._part(inputs[tensor.value_index])
        if kind in _SUMS:
            return self._summed(kind, [self._part(each) for each in inputs])
        values = _VALUES.get(kind, slice(None))
        joins = kind in _VALUES and set(behind) <= set(range(len(inputs))[values])
        if not (joins or (kind in _BILINEAR and len(behind) == 1) or behind == [_LINEAR.get(kind)]):
            raise NotLinear(operation)
        found = {position: self._part(inputs[position]) for position in behind}
        if all(part is None for part in found.values()) and (not joins or len(behind) == len(inputs[values])):
            return None
        return self._copied(operation, tensor, found)

    def _summed(self, kind: str, terms: Sequence[Any]) -> Any:
        if kind == "Sub" and terms[1] is not None:
            terms = [terms[0], tf.negative(terms[1])]
        left = [each for each in terms if each is not None]
        total = sum(left[1:], left[0]) if left else None
        return tf.negative(total) if left and kind == "Neg" else total

    def _copied(self, operation: Any, tensor: Any, parts: dict[int, Any]) -> Any:
        """The result of the operation for the parts without gradients, of which those that are missing are zero."""
        inputs = [
            each if position not in parts else tf.zeros_like(each) if parts[position] is None
            else tf.broadcast_to(parts[position], tf.shape(each))
            for position, each in enumerate(operation.inputs)
        ]
        return copied(operation, inputs, "added").outputs[tensor.value_index]


def _takes_all_rows(reduction: Any) -> bool:
    """Whether a reduction takes entries along the first axis together, as far as its axes are known."""
    rank = reduction.inputs[0].shape.rank
    axes = tf.get_static_value(reduction.inputs[1]) if len(reduction.inputs) > 1 else None
    return axes is None or not rank or any(int(axis) % rank == 0 for axis in axes.flat)
