"""Find the operations that compute with gradients besides `apply`, such as a norm that is logged.

In: a traced step, and the raw gradients of one `apply`. Out: `Afterwards`, the operations that move to the update, and
those that stay outside and read values that the update hands back. For a norm and its running mean::

    norm = Sqrt(Sum(Square(gradient)))      moves to the update: it needs gradients and constants only
    AssignVariableOp(norm_mean, ...)        stays outside: it writes a variable of the model

Both use the whole batch's gradients, as on one device. `own_gradient_uses` tells which uses of a captured step do not.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from autodist_core.capture.linearity import is_same_everywhere
from autodist_core.capture.tape import Tape
from autodist_core.capture.traced import Traced
from autodist_core.capture.traversal import reached_from, readers, sources
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex


@dataclass(frozen=True)
class Afterwards:
    """The names of the operations that compute results or side effects from gradients.

    >>> bool(Afterwards()), bool(Afterwards(updating=("norm",)))
    (False, True)
    """

    updating: tuple[str, ...] = ()
    """The operations that move to the update."""
    outside: tuple[str, ...] = ()
    """The operations that stay outside the update."""
    is_result: bool = False
    """Whether a gradient, or a value between the gradient and `apply`, is itself a result of the step."""

    def __bool__(self) -> bool:
        return bool(self.updating or self.outside or self.is_result)


def afterwards(
    traced: Traced, tape: Tape, raw: Sequence[Any], between: Collection[str], marks: Collection[str]
) -> Afterwards:
    """Find the operations outside the updates that compute with raw gradients.

    `between` names the operations between these gradients and `apply`. `marks` names the operations of all updates.

    >>> from autodist_core.capture.example import example_traced
    >>> traced = example_traced()
    >>> marker = traced.gradients[0].values.op
    >>> afterwards(traced, Tape(), marker.inputs, ["marker"], traced.updates).updating
    ('norm/Abs', 'norm/Sum', 'norm/Squeeze')
    """
    reached = reached_from(
        (reader for tensor in raw for reader in tensor.consumers()), readers,
        stop=lambda operation: operation.name in marks or operation.name in traced.of_replica or tape.made(operation),
    )
    given = {tensor.name for tensor in raw}
    is_result = any(output.name in given or output.op.name in between for output in traced.outputs)
    if all(name in between for name in reached):
        return Afterwards(is_result=is_result)
    for_gradients = reached_from(traced.markers, sources)
    roots = [*(output.op for output in traced.outputs), *traced.graph.control_outputs]
    wanted = reached_from(roots, sources, stop=lambda operation: operation.name not in reached)
    updating: dict[str, None] = {}
    outside: list[str] = []
    for name in (operation.name for operation in traced.graph.get_operations()):
        if name not in wanted or name in for_gradients:
            continue
        inside = all(
            tensor.name in given or tensor.op.name in between or tensor.op.name in updating
            or is_same_everywhere(tensor.op) for tensor in wanted[name].inputs
        )
        if inside:
            updating[name] = None
        else:
            outside.append(name)
    return Afterwards(tuple(updating), tuple(outside), is_result)


def own_gradient_uses(uses: Sequence[tuple[Any, Any]], traced: Traced, item: GraphItem) -> tuple[tuple[Any, Any], ...]:
    """Return those uses of gradients in which each replica takes its own gradients.

    The others take the whole batch's: they run in the update of the captured step, or they change gradients on the way
    to it in a way that commutes with the sum over the replicas. A use is an operation, and the operation in the graph
    of the step that runs it.

    >>> from autodist_core.capture import capture
    >>> from autodist_core.capture.example import example_traced
    >>> traced = example_traced()
    >>> norm, loss = (traced.graph.get_operation_by_name(name) for name in ("norm/Sum", "loss"))
    >>> [use.name for use, _ in own_gradient_uses([(norm, norm), (loss, loss)], traced, capture(traced))]
    ['loss']
    """
    tape, index = Tape(), StepIndex.of(item)
    on_the_way = reached_from(traced.markers, lambda operation: () if tape.made(operation) else sources(operation))
    return tuple(
        (use, within) for use, within in uses if within.name not in on_the_way and not index.is_update(within.name)
    )
