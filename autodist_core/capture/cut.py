"""Where compute ends and the update begins: at the marked gradients, or before what a step does to them by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from autodist_core.capture.tape import Tape
from autodist_core.capture.traced import Marked, Traced, name_of
from autodist_core.errors import CaptureError
from autodist_core.graph_item import Gradient


def cut(traced: Traced, marks: dict[str, int]) -> tuple[list[Gradient], dict[str, Any]]:
    """Where each gradient is cut, and the tensors behind which a cut moved, by the name of the marker they need.

    Adds what lies between a moved cut and `apply` to the update.
    """
    found: list[Gradient] = []
    moved: dict[str, Any] = {}
    tape = Tape()
    for occurrence in sorted(traced.updates):
        marked = [gradient for gradient in traced.gradients if gradient.occurrence == occurrence]
        names = {id(tensor): name_of(tensor) for gradient in marked for tensor in _parts(gradient)}
        taped = [gradient for gradient in marked if tape.reaches(gradient.values.op)]
        if not all(tape.is_linear(tensor.op.inputs[0]) for gradient in taped for tensor in _parts(gradient)):
            cuts: dict[str, Any] = {}
            for gradient in taped:
                for tensor in _parts(gradient):
                    names[id(tensor)] = f"gradient/{occurrence}/{len(cuts)}"
                    cuts[names[id(tensor)]] = _raw_gradient(tape, gradient, tensor)
            marks.update(dict.fromkeys(_between(taped, cuts.values(), tape), occurrence))
            moved.update(cuts)
        for gradient in marked:
            values, indices = names[id(gradient.values)], names.get(id(gradient.indices), "")
            # What no tape made (zeros for a variable that the loss does not reach) counts as a mean.
            weighted = gradient.weighted and tape.reaches(gradient.values.op)
            found.append(Gradient(gradient.variable, occurrence, values, indices, weighted))
    return found, moved


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
        if tape.is_source(tensor) or (len(alike) != 1 and tape.is_linear(tensor)):
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


def _between(marked: Sequence[Marked], cuts: Iterable[Any], tape: Tape) -> list[str]:
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
    return list(seen)

