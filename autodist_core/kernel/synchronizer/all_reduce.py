"""All-reduce: every replica gets the sum of all replicas' gradients and runs the whole update itself.

Dense gradients of one group and type travel as one flat tensor through one collective; the rows of sparse gradients
are gathered. A replica without examples contributes zeros, or no rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from autodist_core.compiler import AllReducePlan
from autodist_core.graph_item import Gradient
from autodist_core.kernel import editor
from autodist_core.kernel.kernel import Draft, Kernel, Rows, gradient_type
from autodist_core.kernel.placement import Owner, Replica

_HINTS = {"AUTO": "auto", "NCCL": "nccl", "RING": "ring"}
_Bucket = tuple[int, int, str, tf.DType]


@dataclass(frozen=True)
class AllReduceSynchronizer(Kernel):
    """Collectives over all replicas, one per occurrence, group, hint and type."""

    def apply(self, draft: Draft) -> None:
        """Reduce every gradient whose variable is updated on all replicas."""
        owners = [owner for owner in draft.placement.owners if owner.replica is not None]
        buckets: dict[_Bucket, list[Gradient]] = {}
        for gradient in draft.captured.item.gradients:
            if not owners or gradient.variable not in owners[0].variables:
                continue
            if gradient.indices or len(owners) == 1:
                for owner in owners:
                    draft.reduced_for(gradient, owner)
                continue
            plan = draft.placement.plans[gradient.variable].synchronizer
            assert isinstance(plan, AllReducePlan)
            key = gradient.occurrence, plan.group, _hint(draft, plan.spec), gradient_type(draft.captured, gradient)
            buckets.setdefault(key, []).append(gradient)
        for key, gradients in buckets.items():
            _reduce_bucket(draft, owners, key, gradients)


def _hint(draft: Draft, spec: str) -> str:
    """NCCL moves tensors between GPUs only; on other devices the runtime's ring does the same sum."""
    on_gpu = all(":GPU:" in replica.name for replica in draft.placement.replicas)
    return _HINTS[spec] if on_gpu or spec != "NCCL" else "ring"


def _reduce_bucket(draft: Draft, owners: list[Owner], key: _Bucket, gradients: list[Gradient]) -> None:
    occurrence, group, hint, dtype = key
    label = f"all_reduce/{occurrence}/{group}_{hint}_{dtype.name}"
    shapes = [draft.captured.variables[gradient.variable].shape for gradient in gradients]
    sizes = [int(np.prod(shape)) for shape in shapes]
    for replica in draft.placement.replicas:
        owner = owners[replica.index]
        flat = _flat(draft, replica, f"{label}/{replica.prefix}", gradients, sizes, dtype)
        total = _collective(draft, replica, f"{label}/{replica.prefix}/sum", flat, hint, dtype)
        parts = _unflatten(draft, replica, f"{label}/{replica.prefix}", total, sizes, shapes, dtype)
        for gradient, part in zip(gradients, parts, strict=True):
            draft.reduced[gradient.variable, occurrence, owner.name] = Rows(part)


def _flat(
    draft: Draft, replica: Replica, label: str, gradients: list[Gradient], sizes: list[int], dtype: tf.DType
) -> str:
    add, device = draft.editor.add, replica.device
    if replica.index >= draft.active:
        return draft.editor.constant(f"{label}/nothing", np.zeros(sum(sizes), dtype.as_numpy_dtype), dtype, device)
    minus_one = draft.editor.constant(f"{label}/minus_one", [-1], tf.int32, device)
    parts = []
    for gradient in gradients:
        local = draft.local[gradient.variable, gradient.occurrence, replica.index]
        name = f"{label}/flat/{editor.safe(gradient.variable)}"
        parts.append(add("Reshape", name, [local.values, minus_one], device, T=dtype, Tshape=tf.int32))
    return draft.join(f"{label}/joined", parts, dtype, device)


def _collective(draft: Draft, replica: Replica, name: str, flat: str, hint: str, dtype: tf.DType) -> str:
    scalars = {
        "group_size": len(draft.placement.replicas),
        "group_key": 1,
        "instance_key": _instance_key(draft, name.removesuffix(f"/{replica.prefix}/sum")),
    }
    inputs = [
        draft.editor.constant(f"{name}/{key}", value, tf.int32, "/device:CPU:0") for key, value in scalars.items()
    ]
    return draft.editor.add(
        "CollectiveReduceV2", name, [flat, *inputs], replica.device, T=dtype, merge_op="Add", final_op="Id",
        communication_hint=hint, timeout_seconds=0.0, is_stateless=False, Nordering_token=0, max_subdivs_per_device=-1,
    )


def _instance_key(draft: Draft, label: str) -> int:
    """A number that every replica derives alike, different for every collective of every graph of one session."""
    text = f"{label}/{draft.active}/{draft.captured.digest}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") & 0x7FFFFFFF


def _unflatten(
    draft: Draft, replica: Replica, label: str, total: str, sizes: list[int],
    shapes: list[tuple[int, ...]], dtype: tf.DType,
) -> list[str]:
    add, constant, device = draft.editor.add, draft.editor.constant, replica.device
    pieces = [total]
    if len(sizes) > 1:
        lengths = constant(f"{label}/lengths", np.array(sizes, np.int32), tf.int32, device)
        axis = constant(f"{label}/split_axis", 0, tf.int32, device)
        split = add(
            "SplitV", f"{label}/split", [total, lengths, axis], device, T=dtype, Tlen=tf.int32, num_split=len(sizes)
        )
        pieces = [split if index == 0 else f"{split}:{index}" for index in range(len(sizes))]
    parts = []
    for index, (piece, shape) in enumerate(zip(pieces, shapes, strict=True)):
        target = constant(f"{label}/shape_{index}", np.array(shape, np.int32), tf.int32, device)
        parts.append(add("Reshape", f"{label}/part_{index}", [piece, target], device, T=dtype, Tshape=tf.int32))
    return parts
