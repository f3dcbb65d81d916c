"""Which gradients count the replica's part of the batch, and that no sum mixes those with others."""

from __future__ import annotations

from collections.abc import Iterable

from autodist_core.capture.tape import Tape
from autodist_core.capture.traced import Traced
from autodist_core.errors import CaptureError

_SUMS = {"AddN", "Add", "AddV2", "Sub", "ConcatV2"}


def require_one_weight(traced: Traced, tape: Tape, updates: Iterable[str]) -> None:
    """Raise if a sum has terms that count the replica's part of the batch and terms that do not."""
    ours = set(updates)
    for operation in traced.graph.get_operations() if traced.weighted else ():
        # A tape adds up by AddN only; what else it makes may be a part of the model, recomputed.
        sums = {"AddN"} if tape.made(operation) else _SUMS
        if operation.name not in traced.weighted or operation.name in ours or operation.type not in sums:
            continue
        counted = {
            source.op.name in traced.weighted for source in operation.inputs
            if source.dtype == operation.outputs[0].dtype and source.op.type != "Const" and tape.reaches(source.op)
        }
        if len(counted) > 1:
            raise CaptureError(
                f"gradients of two kinds are added up at {operation.name!r}: of a loss that went through "
                "optimizer.scale_loss, and of one that did not. Let the sum of all terms go there, or none."
            )
