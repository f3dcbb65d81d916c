"""Residuals: write what compressors keep for the next step, together with the update.

In: `draft.new_values`, the new values. Out: one write for each, behind the barrier of the update that it goes with::

    kept/0/write/compressor/error/kernel.replica1 = AssignVariableOp(handle, left, ^barrier/0)

The values were computed along with the gradients. They wait for the barrier as every write of the update does, so a
step that fails leaves them as they were.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from autodist_core.kernel.added_variables import AddedVariable
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.step import naming


@dataclass(frozen=True)
class Residuals(Kernel):
    """The writes of kept variables."""

    needs = ("new_values", "barriers")
    provides = ("added",)

    def apply(self, draft: Draft) -> None:
        """Add them, behind the barrier of the update that they go with."""
        for remembered in draft.new_values:
            kept, occurrence = remembered.variable, remembered.occurrence
            name = f"kept/{occurrence}/write/{naming.safe(kept.name)}"
            inputs = [handle(draft, kept), remembered.value, f"^{draft.barriers[occurrence]}"]
            dtype = tf.as_dtype(kept.dtype)
            draft.targets.append(
                draft.editor.add("AssignVariableOp", name, inputs, kept.device, 2 * occurrence + 1, dtype=dtype)
            )


def recall(draft: Draft, kept: AddedVariable, occurrence: int) -> str:
    """Add a read of a kept variable, before the update of an occurrence writes it."""
    name, dtype = f"kept/{occurrence}/read/{naming.safe(kept.name)}", tf.as_dtype(kept.dtype)
    inputs = [handle(draft, kept)]
    return draft.editor.add("ReadVariableOp", name, inputs, kept.device, 2 * occurrence, dtype=dtype)


def handle(draft: Draft, kept: AddedVariable) -> str:
    """The node that stands for a kept variable."""
    name = f"kept/{naming.safe(kept.name)}"
    if name not in draft.editor:
        draft.added.append(kept)
        draft.editor.add(
            "VarHandleOp", name, device=kept.device, dtype=tf.as_dtype(kept.dtype), shape=tf.TensorShape(kept.shape),
            shared_name=kept.name,
        )
    return name
