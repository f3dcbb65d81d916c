"""All-reduce: every replica gets the sum of all replicas' gradients and runs the whole update itself.

Dense gradients travel in buckets, compressed where the strategy says so; the rows of sparse gradients are gathered. A
replica without examples contributes zeros, or no rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from autodist_core.compiler import AllReducePlan
from autodist_core.kernel.kernel import Draft, Kernel, Rows, gradient_type
from autodist_core.kernel.placement import Owner
from autodist_core.kernel.synchronizer.buckets import Lane, Load, reduce
from autodist_core.kernel.synchronizer.compressors import COMPRESSORS, Parcel, Rounds, Tensors
from autodist_core.strategy.wire import Wire, wire

_HINTS = {"AUTO": "auto", "NCCL": "nccl", "RING": "ring"}


@dataclass(frozen=True)
class AllReduceSynchronizer(Kernel):
    """Collectives over all replicas, in the order in which the backward pass has the gradients."""

    travels: Callable[[AllReducePlan, tuple[int, ...], str], Wire] = wire
    """What is sent of a gradient of a shape and type."""

    def apply(self, draft: Draft) -> None:
        """Reduce every gradient whose variable is updated on all replicas."""
        owners = [owner for owner in draft.placement.owners if owner.replica is not None]
        running: dict[Parcel, Rounds] = {}
        for gradient in draft.captured.item.gradients:
            if not owners or gradient.variable not in owners[0].variables:
                continue
            if gradient.indices or len(owners) == 1:
                for owner in owners:
                    draft.reduced_for(gradient, owner)
                continue
            shape = draft.captured.variables[gradient.variable].shape
            dtype = gradient_type(draft.captured, gradient).name
            parcel = Parcel(draft, gradient, self.travels(_plan(draft, gradient.variable), shape, dtype))
            running[parcel] = COMPRESSORS[parcel.wire.form](parcel)
        sent = {parcel: next(rounds) for parcel, rounds in running.items()}
        turn = 0
        while sent:
            sent = _round(draft, owners, running, sent, turn)
            turn += 1


def _round(
    draft: Draft, owners: list[Owner], running: dict[Parcel, Rounds], sent: dict[Parcel, Tensors], turn: int
) -> dict[Parcel, Tensors]:
    """Sum what was sent; returns what is to be summed next, of the gradients that are not reduced yet."""
    loads = {parcel: _load(draft, parcel, tensors, turn) for parcel, tensors in sent.items()}
    sums = reduce(draft, list(loads.values()))
    further: dict[Parcel, Tensors] = {}
    for parcel, load in loads.items():
        try:
            further[parcel] = running[parcel].send(sums[load])
        except StopIteration as done:
            for owner, value in zip(owners, done.value, strict=True):
                draft.reduced[parcel.gradient.variable, parcel.gradient.occurrence, owner.name] = Rows(value)
    return further


def _load(draft: Draft, parcel: Parcel, tensors: Tensors, turn: int) -> Load:
    plan = _plan(draft, parcel.gradient.variable)
    lane = Lane(
        parcel.gradient.occurrence, plan.group, _hint(draft, plan.spec), tf.as_dtype(parcel.wire.dtype),
        plan.bucket_bytes,
    )
    return Load(lane, f"{parcel.label}/round{turn}", parcel.ready, parcel.wire.shapes[turn], tensors)


def _plan(draft: Draft, variable: str) -> AllReducePlan:
    plan = draft.placement.plans[variable].synchronizer
    assert isinstance(plan, AllReducePlan)
    return plan


def _hint(draft: Draft, spec: str) -> str:
    """NCCL moves tensors between GPUs only; on other devices the runtime's ring does the same sum."""
    on_gpu = all(":GPU:" in replica.name for replica in draft.placement.replicas)
    return _HINTS[spec] if on_gpu or spec != "NCCL" else "ring"
