"""What a step makes of its gradients besides handing them to `apply`: a norm that is logged, a running mean of it.

All of it is made of the whole batch's gradients, as on one device. What needs nothing but gradients and constants goes
to the update; the rest, which touches variables or looks at the batch, stays outside and reads what the update has.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from autodist_core.capture.linearity import is_same_everywhere
from autodist_core.capture.tape import Tape
from autodist_core.capture.traced import Traced
from autodist_core.capture.traversal import reached_from, readers, sources


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
    reached = reached_from(
        (reader for tensor in raw for reader in tensor.consumers()), readers,
        stop=lambda operation: operation.name in marks or tape.made(operation),
    )
    given = {tensor.name for tensor in raw}
    is_result = any(output.name in given or output.op.name in between for output in traced.outputs)
    if all(name in between for name in reached):
        return Afterwards(is_result=is_result)
    markers = (part.op for g in traced.gradients for part in (g.values, g.indices) if part is not None)
    for_gradients = reached_from(markers, sources)
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
