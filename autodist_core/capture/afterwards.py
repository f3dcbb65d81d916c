"""What a step makes of its gradients besides handing them to `apply`: a norm that is logged, a running mean of it.

All of it is made of the whole batch's gradients, as on one device. What needs nothing but gradients and constants goes
to the update; the rest, which touches variables or looks at the batch, stays outside and reads what the update has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autodist_core.capture.tape import Tape, is_same_everywhere
from autodist_core.capture.traced import Traced


@dataclass(frozen=True)
class Afterwards:
    """Operations that compute results or side effects from gradients, by name."""

    updating: tuple[str, ...] = ()
    """Those that go to the update."""
    outside: tuple[str, ...] = ()
    is_result: bool = False
    """Whether a gradient, or what is made of it on the way to `apply`, is a result as it is."""

    def __bool__(self) -> bool:
        return bool(self.updating or self.outside or self.is_result)


def afterwards(
    traced: Traced, tape: Tape, raw: Sequence[Any], between: Collection[str], marks: Collection[str]
) -> Afterwards:
    """What becomes of raw gradients outside the updates.

    `between` names the operations on the way from them to `apply`, and `marks` those of all updates.
    """
    reached = _closure(
        (reader for tensor in raw for reader in tensor.consumers()),
        lambda operation: (reader for output in operation.outputs for reader in output.consumers()),
        lambda operation: operation.name in marks or tape.made(operation),
    )
    given = {tensor.name for tensor in raw}
    is_result = any(output.name in given or output.op.name in between for output in traced.outputs)
    if all(name in between for name in reached):
        return Afterwards(is_result=is_result)
    markers = (part.op for g in traced.gradients for part in (g.values, g.indices) if part is not None)
    for_gradients = _closure(markers, _sources, lambda operation: False)
    roots = [*(output.op for output in traced.outputs), *traced.graph.control_outputs]
    wanted = _closure(roots, _sources, lambda operation: operation.name not in reached)
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


def _sources(operation: Any) -> list[Any]:
    return [tensor.op for tensor in operation.inputs]


def _closure(
    start: Iterable[Any], following: Callable[[Any], Iterable[Any]], stop: Callable[[Any], bool]
) -> dict[str, Any]:
    """All operations that follow from some, by name; those at which to stop are left out."""
    found: dict[str, Any] = {}
    waiting = list(start)
    while waiting:
        operation = waiting.pop()
        if operation.name not in found and not stop(operation):
            found[operation.name] = operation
            waiting.extend(following(operation))
    return found
