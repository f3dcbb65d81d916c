"""Where compute ends and the update begins: at the marked gradients, or before what a step does to them by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from autodist_core.capture.traced import Marked, Traced, name_of
from autodist_core.errors import CaptureError
from autodist_core.graph_item import Gradient

_TAPE = "gradient_tape/"
# Operations that commute with a sum over replicas when everything they read does.
_LINEAR = {"AddN", "Identity", "IdentityN", "ConcatV2", "Reshape", "Cast", "Add", "AddV2", "Sub", "Neg",
           "Squeeze", "ExpandDims", "UnsortedSegmentSum", "Pack"}
# Inputs of these that say where, not how much.
_POSITIONS = {"ConcatV2": (-1,), "Reshape": (1,), "ExpandDims": (1,), "UnsortedSegmentSum": (1, 2)}
_SCALING = {"Mul": (0, 1), "RealDiv": (0,), "DivNoNan": (0,)}


def cut(traced: Traced, marks: dict[str, int]) -> tuple[list[Gradient], dict[str, Any]]:
    """Where each gradient is cut, and the tensors behind which a cut moved, by the name of the marker they need.

    Adds what lies between a moved cut and `apply` to the update.
    """
    found: list[Gradient] = []
    moved: dict[str, Any] = {}
    has_tape = _TapeAncestors()
    for occurrence in sorted(traced.updates):
        marked = [gradient for gradient in traced.gradients if gradient.occurrence == occurrence]
        names = {id(tensor): name_of(tensor) for gradient in marked for tensor in _parts(gradient)}
        taped = [gradient for gradient in marked if has_tape(gradient.values.op)]
        if not all(_is_linear(has_tape, tensor.op.inputs[0]) for gradient in taped for tensor in _parts(gradient)):
            cuts: dict[str, Any] = {}
            for gradient in taped:
                for tensor in _parts(gradient):
                    names[id(tensor)] = f"gradient/{occurrence}/{len(cuts)}"
                    cuts[names[id(tensor)]] = _raw_gradient(has_tape, gradient, tensor)
            marks.update(dict.fromkeys(_between(taped, cuts.values(), has_tape), occurrence))
            moved.update(cuts)
        for gradient in marked:
            values, indices = names[id(gradient.values)], names.get(id(gradient.indices), "")
            # What no tape made (zeros for a variable that the loss does not reach) counts as a mean.
            weighted = gradient.weighted and has_tape(gradient.values.op)
            found.append(Gradient(gradient.variable, occurrence, values, indices, weighted))
    return found, moved


def _parts(gradient: Marked) -> list[Any]:
    return [gradient.values] if gradient.indices is None else [gradient.values, gradient.indices]


class _TapeAncestors:
    """Whether a tensor was computed from a tape's gradients."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}

    def __call__(self, operation: Any) -> bool:
        waiting = [operation]
        while waiting:
            current = waiting[-1]
            if current.name in self._known:
                waiting.pop()
            elif _TAPE in current.name:
                self._known[current.name] = True
            else:
                unknown = [t.op for t in current.inputs if t.op.name not in self._known]
                if unknown:
                    waiting.extend(unknown)
                else:
                    self._known[current.name] = any(self._known[t.op.name] for t in current.inputs)
        return self._known[operation.name]


def _is_linear(has_tape: _TapeAncestors, tensor: Any) -> bool:
    """Whether a gradient is as the tape made it, up to operations that commute with a sum over replicas."""
    operation = tensor.op
    if _TAPE in operation.name:
        return True
    inputs = list(operation.inputs)
    if operation.type in _LINEAR:
        skipped = {inputs[position].name for position in _POSITIONS.get(operation.type, ())}
        return bool(inputs) and all(_is_linear(has_tape, source) for source in inputs if source.name not in skipped)
    if operation.type in _SCALING:
        tainted = [position for position, source in enumerate(inputs) if has_tape(source.op)]
        return (
            len(tainted) == 1
            and tainted[0] in _SCALING[operation.type]
            and _is_linear(has_tape, inputs[tainted[0]])
            and _is_same_everywhere(inputs[1 - tainted[0]].op)
        )
    return False


def _is_same_everywhere(operation: Any) -> bool:
    """Whether a value is computed from constants alone, and so is the same on every replica."""
    if operation.type == "Placeholder" or operation.op_def.is_stateful:
        return False
    return all(_is_same_everywhere(source.op) for source in operation.inputs)


def _raw_gradient(has_tape: _TapeAncestors, gradient: Marked, marker: Any) -> Any:
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
            and source.shape.is_compatible_with(tensor.shape) and has_tape(source.op)
        }
        if _TAPE in tensor.op.name or (len(alike) != 1 and _is_linear(has_tape, tensor)):
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


def _between(marked: Sequence[Marked], cuts: Iterable[Any], has_tape: _TapeAncestors) -> list[str]:
    """The operations between the cut gradients and the markers, markers included."""
    stops = {tensor.name for tensor in cuts}
    waiting = [tensor.op for gradient in marked for tensor in _parts(gradient)]
    seen: dict[str, Any] = {}
    while waiting:
        operation = waiting.pop()
        if operation.name in seen:
            continue
        if _TAPE in operation.name:
            raise CaptureError(
                f"gradients are transformed before optimizer.apply by something that reads {operation.name!r}, which "
                "is not the gradient of a variable. It would differ between replicas; move it into the optimizer."
            )
        seen[operation.name] = operation
        waiting.extend(
            source.op for source in operation.inputs if source.name not in stops and has_tape(source.op)
        )
    return list(seen)

