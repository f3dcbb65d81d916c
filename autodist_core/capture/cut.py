"""Where compute ends and the update begins: at the marked gradients, or before what a step does to them by hand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autodist_core.capture.afterwards import afterwards
from autodist_core.capture.rows import rows_of
from autodist_core.capture.second_use import require_no_second_use
from autodist_core.capture.tape import Tape
from autodist_core.capture.traced import Marked, Traced, name_of
from autodist_core.errors import CaptureError
from autodist_core.graph_item import EACH, Gradient


@dataclass
class Cut:
    """Where a step is cut in two."""

    gradients: list[Gradient] = field(default_factory=list)
    moved: dict[str, Any] = field(default_factory=dict)
    """The tensors behind which a cut moved, by the name of the marker they need."""
    outside: set[str] = field(default_factory=set)
    """The operations outside the update that read gradients where they are cut."""


def cut(traced: Traced, marks: dict[str, int]) -> Cut:
    """Cut a step at its gradients, and where something else is made of them before `apply` does: before that.

    Adds to the update what lies between such a cut and `apply`, and what results are made of gradients alone.
    """
    found = Cut()
    tape = Tape(traced)
    tape.require_one_weight(operation for operation in traced.graph.get_operations() if operation.name not in marks)
    updates = dict(marks)
    require_no_second_use(traced, tape, updates)
    for occurrence in sorted(traced.updates):
        marked = [gradient for gradient in traced.gradients if gradient.occurrence == occurrence]
        names = {id(tensor): name_of(tensor) for gradient in marked for tensor in _parts(gradient)}
        taped = [gradient for gradient in marked if tape.reaches(gradient.values.op)]
        for gradient in marked:
            # What is made of a gradient that is cut is the whole batch's, in a variable too.
            if not tape.reaches(gradient.values.op):
                tape.require_linear_through_variables(gradient.variable, gradient.values.op.inputs[0], updates)
        raw = {id(part): _raw_gradient(tape, gradient, part) for gradient in taped for part in _parts(gradient)}
        between = _between(taped, raw.values(), tape)
        after = afterwards(traced, tape, list(raw.values()), between, updates)
        linear = all(tape.is_linear(part.op.inputs[0]) for gradient in taped for part in _parts(gradient))
        if after or not linear:
            for index, (part, tensor) in enumerate(raw.items()):
                names[part] = f"gradient/{occurrence}/{index}"
                found.moved[names[part]] = tensor
            marks.update(dict.fromkeys([*between, *after.updating], occurrence))
            found.outside.update(after.outside)
        for gradient in marked:
            values, indices = names[id(gradient.values)], names.get(id(gradient.indices), "")
            weighted = tape.is_weighted(gradient.values.op)
            rows = EACH if gradient.indices is None else rows_of(gradient.variable, gradient.indices, traced.inputs)
            found.gradients.append(Gradient(gradient.variable, occurrence, values, indices, weighted, rows))
    return found


def _parts(gradient: Marked) -> list[Any]:
    return [gradient.values] if gradient.indices is None else [gradient.values, gradient.indices]


def _raw_gradient(tape: Tape, gradient: Marked, marker: Any) -> Any:
    """Follow a transformed gradient back, along tensors of its own shape, to the one tensor that the tape made."""
    found: dict[str, Any] = {}
    seen: set[str] = set()
    waiting = [marker.op.inputs[0]]
    while waiting:
        tensor = waiting.pop()
        if tensor.name in seen:
            continue
        seen.add(tensor.name)
        alike = {
            source.name: source for source in tensor.op.inputs
            if source.dtype == tensor.dtype and source.shape.rank == tensor.shape.rank
            and source.shape.is_compatible_with(tensor.shape) and tape.reaches(source.op)
        }
        alone = len(alike) == 1 and sum(tape.reaches(source.op) for source in tensor.op.inputs) == 1
        if tape.is_source(tensor) or (not alone and tape.is_linear(tensor)):
            found[tensor.name] = tensor
        else:
            waiting.extend(alike.values())
    if len(found) != 1:
        operation = marker.op.inputs[0].op
        raise CaptureError(
            f"the gradient of {gradient.variable!r} is transformed by {operation.name!r} ({operation.type}) between "
            "the tape and optimizer.apply, and it is not clear where it comes from. Let the optimizer clip (clipnorm, "
            "clipvalue, global_clipnorm), or override its update, so that it acts on the reduced gradient."
        )
    return next(iter(found.values()))


def _between(marked: Sequence[Marked], cuts: Iterable[Any], tape: Tape) -> Collection[str]:
    """The operations between the cut gradients and the markers, markers included."""
    stops = {tensor.name for tensor in cuts}
    waiting = [tensor.op for gradient in marked for tensor in _parts(gradient)]
    seen: dict[str, Any] = {}
    while waiting:
        operation = waiting.pop()
        if operation.name in seen:
            continue
        if tape.made(operation):
            raise CaptureError(
                f"gradients are transformed before optimizer.apply by something that reads {operation.name!r}, which "
                "is not the gradient of a variable. It would differ between replicas; move it into the optimizer."
            )
        seen[operation.name] = operation
        waiting.extend(
            source.op for source in operation.inputs if source.name not in stops and tape.reaches(source.op)
        )
    return seen.keys()

