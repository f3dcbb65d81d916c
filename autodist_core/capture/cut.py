"""Find where compute ends and the update begins.

In: a traced step. Out: a `Cut`, the captured gradients and the tensors to which cuts have moved. For a gradient that a
custom step clips by norm before `apply`::

    gradient = MatMul(...)                  compute
    ------------------------------------    the cut has moved here
    clipped  = Mul(gradient, 1 / norm)      update
    marker   = Identity(clipped)            update

A cut is at the marker if all operations before the marker are linear in the gradients. Otherwise it moves before them.
The norm is then the norm of the whole batch's gradient, as on one device.

A sum of a weighted gradient and an unweighted one is refused::

    AddN(weighted gradient, weighted gradient)      passes
    AddN(weighted gradient, unweighted gradient)    is refused
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autodist_core.capture.gradient_uses import Afterwards, afterwards
from autodist_core.capture.linearity import Linearity
from autodist_core.capture.refuse.second_use import changed_in_variables, second_uses
from autodist_core.capture.sparse_rows import rows_of
from autodist_core.capture.tape import Tape, require_recognised
from autodist_core.capture.traced import Marked, Traced, name_of
from autodist_core.capture.traversal import reached_from
from autodist_core.errors import CaptureError, Refusals
from autodist_core.step.graph_item import EACH, Gradient


@dataclass
class Cut:
    """The places at which a step is cut into compute and update.

    >>> from autodist_core.capture.example import example_traced
    >>> traced = example_traced()
    >>> found = cut(traced, dict(traced.updates))
    >>> print(found.gradients[0].values, "stands for", found.moved[found.gradients[0].values].name)
    gradient/0/0 stands for gradient_tape/matmul/MatMul:0
    """

    gradients: list[Gradient] = field(default_factory=list)
    moved: dict[str, Any] = field(default_factory=dict)
    """The tensors to which a cut has moved, by the names of their new markers."""
    outside: set[str] = field(default_factory=set)
    """The operations outside the update that read gradients behind such a cut."""


@dataclass(frozen=True)
class _Apply:
    """One `apply`: its gradients, and the operations that compute with them."""

    occurrence: int
    marked: Sequence[Marked]
    raw: Mapping[int, Any]
    """For each tensor of a marker, by id, the tensor that the tape made."""
    between: Collection[str]
    after: Afterwards
    linear: bool


def cut(traced: Traced, marks: dict[str, int]) -> Cut:
    """Cut a step at its gradients. `marks` maps the nodes of the update to their occurrences, and grows.

    The cut moves back to the tape's gradients if the step changes them nonlinearly before `apply`, or computes anything
    else with them. Then the operations between the cut and `apply` become a part of the update, and so do operations
    that make results from gradients alone.

    >>> from autodist_core.capture.example import example_traced
    >>> traced = example_traced(changed=lambda gradient: gradient / (1.0 + abs(gradient)))
    >>> marks = dict(traced.updates)
    >>> found = cut(traced, marks)
    >>> [name for name in marks if name not in traced.updates]
    ['marker', 'truediv_1', 'add', 'Abs', 'norm/Abs', 'norm/Sum', 'norm/Squeeze']
    """
    found, refusals = Cut(), Refusals()
    applies = _applies(traced, marks)
    # One norm may be that of the gradients of several: if one cut moves, all do.
    moves = any(apply.after or not apply.linear for apply in applies)
    for apply in applies:
        names = {id(tensor): name_of(tensor) for gradient in apply.marked for tensor in gradient.markers}
        if moves:
            for index, (part, tensor) in enumerate(apply.raw.items()):
                names[part] = f"gradient/{apply.occurrence}/{index}"
                found.moved[names[part]] = tensor
            marks.update(dict.fromkeys([*apply.between, *apply.after.updating], apply.occurrence))
            found.outside.update(apply.after.outside)
        for gradient in apply.marked:
            values, indices = names[id(gradient.values)], names.get(id(gradient.indices), "")
            counted, rows = gradient.alike or gradient.values.op.name in traced.weighted, EACH
            with refusals.collecting():
                if gradient.indices is not None:
                    rows = rows_of(gradient.variable, gradient.indices, traced.inputs)
            found.gradients.append(
                Gradient(gradient.variable, apply.occurrence, values, indices, counted, rows, gradient.alike)
            )
    refusals.require_none()
    return found


def _applies(traced: Traced, marks: Mapping[str, int]) -> list[_Apply]:
    """Return every `apply` of a step; raise a `CaptureError` where replicas cannot do what one device does."""
    tape = Tape()
    linearity, refusals = Linearity(tape), Refusals()
    require_recognised(traced, tape)
    refusals.add(*mixed_weights(traced, tape, marks))
    refusals.add(*second_uses(traced, tape, marks) if not traced.own_losses else ())
    refusals.add(*changed_in_variables(traced, tape, marks))
    raw: dict[int, Any] = {}
    # What is refused so far may look like a gradient of unclear origin, too.
    for gradient in traced.gradients if not refusals else ():
        for part in gradient.markers if tape.reaches(gradient.values.op) else ():
            with refusals.collecting():
                raw[id(part)] = _raw_gradient(tape, linearity, gradient, part)
    refusals.require_none()
    found = []
    for occurrence in sorted({*traced.updates.values(), *(each.occurrence for each in traced.gradients)}):
        marked = [gradient for gradient in traced.gradients if gradient.occurrence == occurrence]
        parts = [part for gradient in marked for part in gradient.markers if id(part) in raw]
        ours = {id(part): raw[id(part)] for part in parts}
        between = _between(parts, raw.values(), tape)
        refusals.add(*_of_no_variable(traced.graph, between, tape))
        after = afterwards(traced, tape, list(ours.values()), between, marks)
        linear = all(linearity.is_linear(part.op.inputs[0]) for part in parts)
        found.append(_Apply(occurrence, marked, ours, between, after, linear))
    refusals.require_none()
    return found


def _raw_gradient(tape: Tape, linearity: Linearity, gradient: Marked, marker: Any) -> Any:
    """Follow a changed gradient back, along tensors of its own shape, to the one tensor that the tape made.

    The tape makes no tensor for a variable that the loss does not reach. Then the result is the tensor of zeros that
    the step uses in its place.
    """
    found: dict[str, Any] = {}
    nothing = None
    seen: set[str] = set()
    waiting = [marker.op.inputs[0]]
    while waiting:
        tensor = waiting.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        # A loop that runs a tape may start from zeros: these are not the zeros of an unreached variable.
        by_itself = tape.runs_one(tensor.op)
        alike = {
            source.name: source for source in tensor.op.inputs
            if source.dtype == tensor.dtype and source.shape.rank == tensor.shape.rank
            and source.shape.is_compatible_with(tensor.shape)
            and (tape.reaches(source.op) or (not by_itself and linearity.is_linear(source)))
        }
        alone = len(alike) == 1 and sum(tape.reaches(source.op) for source in tensor.op.inputs) == 1
        if not tape.reaches(tensor.op):
            nothing = tensor
        elif linearity.is_source(tensor) or (not alone and linearity.is_linear(tensor)):
            found[tensor.name] = tensor
        else:
            waiting.extend(alike.values())
    if not found and nothing is not None:
        return nothing
    if len(found) != 1:
        operation = marker.op.inputs[0].op
        raise CaptureError(
            f"the gradient of {gradient.variable!r} is transformed by {operation.name!r} ({operation.type}) between "
            "the tape and optimizer.apply, and it is not clear where it comes from. Let the optimizer clip (clipnorm, "
            "clipvalue, global_clipnorm), or override its update, so that it acts on the reduced gradient. Gradients "
            "of single examples (jacobian, vectorized_map) cannot be treated one by one."
        )
    return next(iter(found.values()))


def _between(markers: Sequence[Any], cuts: Iterable[Any], tape: Tape) -> Collection[str]:
    """Return the names of the operations between the cut gradients and the markers, with the markers."""
    stops = {tensor.name for tensor in cuts}
    return reached_from(
        (tensor.op for tensor in markers),
        lambda operation: () if tape.made(operation) else (
            source.op for source in operation.inputs if source.name not in stops and tape.reaches(source.op)
        ),
    ).keys()


def _of_no_variable(graph: Any, between: Iterable[str], tape: Tape) -> Iterator[CaptureError]:
    """Yield an error for each gradient that is not a variable's, and that changes gradients of variables."""
    for name in between:
        operation = graph.get_operation_by_name(name)
        if tape.made(operation) or tape.runs_one(operation):
            yield CaptureError(
                f"gradients are transformed before optimizer.apply by something that reads {name!r}, which "
                "is not the gradient of a variable. It would differ between replicas; move it into the optimizer."
            )


_SUMS = {"AddN", "Add", "AddV2", "Sub", "ConcatV2"}


def mixed_weights(traced: Traced, tape: Tape, updates: Iterable[str]) -> Iterator[CaptureError]:
    """Yield an error for each sum of weighted and unweighted gradients; `updates` names the update's nodes.

    A loss that went through `optimizer.scale_loss` is weighted: it counts the replica's share of the batch. A loss that
    did not is a mean over the replica's own examples. The sum over the replicas is right for weighted gradients, the
    weighted mean for the others. No rule is right for both.

    Where a front weights the seed of every tape itself (`Traced.added_up`), nothing is refused: what does not depend on
    a seed is a zero, such as the gradient of a sign, and counts in either way.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default() as graph:
    ...     kernel = tf.constant(2.0)
    ...     with tf.GradientTape(persistent=True) as tape:
    ...         tape.watch(kernel)
    ...         scaled, other = tf.square(kernel), tf.abs(kernel)
    ...     weighted = tape.gradient(scaled, kernel)
    ...     total = tf.add(weighted, tape.gradient(other, kernel), name="total")
    >>> traced = Traced(graph, [], [], [total], None, None, weighting=[weighted])
    >>> for error in mixed_weights(traced, Tape(), ()):
    ...     print(str(error).partition(":")[0])
    gradients of two kinds are added up at 'total'
    """
    ours = set(updates)
    for operation in traced.graph.get_operations() if traced.weighting else ():
        # A tape adds gradients up by AddN only. Other sums that a tape made may repeat sums of the model.
        sums = {"AddN"} if tape.made(operation) else _SUMS
        if operation.name not in traced.weighted or operation.name in ours or operation.type not in sums:
            continue
        counted = {
            source.op.name in traced.weighted for source in operation.inputs
            if source.dtype == operation.outputs[0].dtype and source.op.type != "Const" and tape.reaches(source.op)
        }
        if len(counted) > 1:
            yield CaptureError(
                f"gradients of two kinds are added up at {operation.name!r}: of a loss that went through "
                "optimizer.scale_loss, and of one that did not. Let the sum of all terms go there, or none."
            )
