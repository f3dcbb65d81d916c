"""AllReduceSynchronizer: every replica gets the sum of all replicas' gradients, and runs the whole update itself.

In: each replica's own gradients, `draft.local`. Out: the reduced gradients on every replica, `draft.reduced`. For two
replicas on one machine, each has a collective, whose result is the sum over both::

    all_reduce/0/.../bucket0/replica0/sum = CollectiveReduceV2(replica0's gradients)
    all_reduce/0/.../bucket0/replica1/sum = CollectiveReduceV2(replica1's gradients)

Dense gradients travel in buckets, compressed where the strategy says so; `sums` adds them up. The rows of sparse
gradients are gathered. Two or three machines send them to each other: a step with two tables took 0.71 to 0.76 of the
time with collectives. The factors of gradients that are products are gathered, too, where the strategy says so, and by
collectives: sends took 0.90 to 1.06 of the time. A replica without examples contributes zeros, or no rows.
"""

from typing import cast

import tensorflow as tf

from autodist_core.kernel.draft import Draft, Rows
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.passes.synchronizer.buckets import Lane, Load, by_machines, reduce
from autodist_core.kernel.passes.synchronizer.compressors import COMPRESSORS, Parcel, Tensors
from autodist_core.kernel.passes.synchronizer.factors import gather_factors
from autodist_core.kernel.passes.synchronizer.reduction import reduce_all
from autodist_core.kernel.passes.synchronizer.rows import gather_rows, machines_of
from autodist_core.kernel.passes.synchronizer.sums import SENDS, hint_of
from autodist_core.kernel.placement.devices import host_of
from autodist_core.kernel.placement.placement import Owner
from autodist_core.kernel.units.kinds import ALL_BUILT
from autodist_core.step import naming
from autodist_core.step.graph_item import Gradient
from autodist_core.step.grouping import grouped
from autodist_core.strategy.synchronizers import BUCKET_BYTES, AllReducePlan

_LEAST = 1 << 20
"""The bytes below which the limit of a bucket does not sink by itself: less was slower over links of 1 Gbit/s."""


class AllReduceSynchronizer(Kernel):
    """Adds sums over all replicas, in the order in which the backward pass computes the gradients.

    >>> from autodist_core.kernel.example import example_change
    >>> from autodist_core.strategy import AllReduce
    >>> example_change(AllReduce(), "AllReduceSynchronizer", "CollectiveReduceV2")
    'CollectiveReduceV2: 0 -> 2'
    """

    needs = ("local",)
    provides = ("reduced", "collectives", "buckets", "added", "new_values")

    def apply(self, draft: Draft) -> None:
        """Reduce every gradient whose variable is updated on all replicas."""
        owners = [owner for owner in draft.placement.owners if owner.replica is not None]
        parcels: list[Parcel] = []
        gathered: list[Gradient] = []
        factored: list[Gradient] = []
        for gradient in draft.step.item.gradients:
            if not owners or gradient.variable not in owners[0].variables:
                continue
            if gradient.key in draft.products.travelling:
                factored.append(gradient)
                continue
            if gradient.indices or len(owners) == 1:
                gathered.append(gradient)
                continue
            # A split variable has a parcel for each shard.
            for each in draft.placement.plans[gradient.variable].pieces:
                parcels.append(Parcel(draft, gradient, each.variable, cast(AllReducePlan, each.synchronizer)))
        _gather(draft, owners, gathered)
        gather_factors(draft, owners, factored)
        _put_together(draft, owners, _summed(draft, parcels))


def _gather(draft: Draft, owners: list[Owner], gradients: list[Gradient]) -> None:
    """Bring all replicas' rows to every replica, and what has one owner only to that one."""
    if len({host_of(owner.device) for owner in owners}) <= 1:
        for owner in owners:
            reduce_all(draft, gradients, owner)
        return
    sent = [gradient for gradient in gradients if _travels_by_sends(draft, gradient)]
    gather_rows(draft, owners, [gradient for gradient in gradients if gradient not in sent])
    for _, (first, *others) in draft.placement.at_each_host(owners):
        reduce_all(draft, sent, first)
        for gradient in sent:
            for owner in others:
                draft.reduced[*gradient.key, owner.name] = draft.reduced[*gradient.key, first.name]


def _travels_by_sends(draft: Draft, gradient: Gradient) -> bool:
    """Whether machines send each other the rows. A machine that stands for others reads nothing but collectives."""
    plan = cast(AllReducePlan, draft.placement.plans[gradient.variable].synchronizer)
    return hint_of(draft, plan) == SENDS and machines_of(draft) <= ALL_BUILT


def _summed(draft: Draft, parcels: list[Parcel]) -> dict[Parcel, Tensors]:
    """Sum what the parcels send, round by round; return the reduced gradients."""
    running = {parcel: COMPRESSORS[parcel.wire.form](parcel) for parcel in parcels}
    sent = {parcel: next(rounds) for parcel, rounds in running.items()}
    turn, done = 0, dict[Parcel, Tensors]()
    while sent:
        loads = {parcel: _load(draft, parcel, tensors, turn) for parcel, tensors in sent.items()}
        sums = reduce(draft, list(loads.values()))
        turn, sent = turn + 1, {}
        for parcel, load in loads.items():
            try:
                sent[parcel] = running[parcel].send(sums[load])
            except StopIteration as result:
                done[parcel] = result.value
    return done


def _put_together(draft: Draft, owners: list[Owner], sums: dict[Parcel, Tensors]) -> None:
    """Fill `draft.reduced` for every replica. Gradients that travelled in shards are put together."""
    for gradient, parcels in grouped(sums, lambda parcel: parcel.gradient).items():
        for owner in owners:
            assert owner.replica is not None
            ordered = sorted(parcels, key=lambda parcel: parcel.variable.offset)
            values = [sums[parcel][owner.replica] for parcel in ordered]
            name = f"sent/{gradient.occurrence}/{naming.safe(gradient.variable)}/{owner.name}/whole"
            total = draft.join(name, values, parcels[0].dtype, owner.device, parcels[0].variable.axis)
            draft.reduced[*gradient.key, owner.name] = Rows(total)


def _load(draft: Draft, parcel: Parcel, tensors: Tensors, turn: int) -> Load:
    plan, dtype = parcel.plan, tf.as_dtype(parcel.wire.dtype)
    # As many elements of half precision as of float32: the backward pass needs as long to compute them.
    limit, least = (size * min(dtype.size, tf.float32.size) // tf.float32.size for size in (plan.bucket_bytes, _LEAST))
    hint = hint_of(draft, plan)
    sinks = plan.bucket_bytes == BUCKET_BYTES and by_machines(draft.placement.replicas, hint)
    lane = Lane(parcel.gradient.occurrence, plan.group, hint, dtype, limit, least if sinks else None)
    return Load(lane, f"{parcel.label}/round{turn}", parcel.ready, parcel.wire.shapes[turn], tensors)
