"""Buckets: tensors of all replicas, summed in vectors of about one size, in the order in which they become ready.

In: tensors, each with its lane (what tensors must share to be in one bucket). Out: the sum of each tensor on every
replica. Two small tensors and a large one, with a limit of 4 MiB::

    bias (1 KiB), kernel (3 MiB), table (10 MiB)  ->  [bias, kernel], [table 0-4], [table 4-8], [table 8-10]

Small tensors are merged and large ones cut. So the first sums travel while the backward pass still computes the rest,
and several buckets are under way at the same time. All replicas cut in the same way, also an idle one. Tensors
that fill less than eight buckets travel over machines in smaller ones, where the strategy says nothing of their size.

Over n machines, n + 1 buckets are under way: a bucket waits for the one that is n + 1 before it. Each of them
has one n-th of its bucket on each link at a time, so the links stay full. If all were under way, they would share the
links and end together. The updates would then begin when all sums are there, and the small signals between machines,
such as those of the barriers, would wait behind all gradients that have been handed to the connection.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import tensorflow as tf

from autodist_core.kernel import packing
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.passes.synchronizer.sums import Team, sums
from autodist_core.kernel.placement.placement import Replica, by_host
from autodist_core.step.grouping import grouped

_COLLECTIVES = 8
"""The limit sinks until gradients fill so many buckets. No arithmetic hides the last one, so it is to be small."""


@dataclass(frozen=True)
class Lane:
    """The properties that tensors must have in common to be in one bucket.

    >>> Lane(0, 0, "auto", tf.float32, limit=16) == Lane(0, 0, "auto", tf.float16, limit=16)
    False
    """

    occurrence: int
    group: int | None
    hint: str
    dtype: tf.DType
    limit: int
    """The most bytes of one bucket; an element larger than that travels alone."""
    least: int | None = None
    """The bytes down to which the limit sinks where all tensors together fill few buckets; None: it stays."""

    def limit_of(self, size: int) -> int:
        """The most bytes of one bucket, of tensors that have so many bytes together.

        >>> lane = Lane(0, 0, "auto", tf.float32, limit=4000, least=500)
        >>> lane.limit_of(100_000), lane.limit_of(16_000), lane.limit_of(1000)
        (4000, 2000, 500)
        """
        return self.limit if self.least is None else min(self.limit, max(size // _COLLECTIVES, self.least))


@dataclass(frozen=True)
class Load:
    """One tensor to be summed: its name in this graph on each replica, empty where another replica's has its part.

    >>> Load(Lane(0, 0, "auto", tf.float32, limit=16), "kernel", 1, (3, 2), ("gradient0", "gradient1")).size
    6
    """

    lane: Lane
    label: str
    ready: int
    """The position of the captured node that computes it: tensors travel in this order."""
    shape: tuple[int, ...]
    tensors: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many elements it has."""
        return prod(self.shape)


@dataclass(frozen=True)
class Stretch:
    """Some consecutive elements of a tensor.

    >>> load = Load(Lane(0, 0, "auto", tf.float32, limit=16), "kernel", 1, (5,), ("gradient0", "gradient1"))
    >>> [(stretch.start, stretch.size) for bucket in fill([load]) for stretch in bucket]
    [(0, 4), (4, 1)]
    >>> fill([load])[1] == (Stretch(load, start=4, size=1),)
    True
    """

    load: Load
    start: int
    size: int


Bucket = tuple[Stretch, ...]


def fill(loads: Sequence[Load]) -> list[Bucket]:
    """Return buckets for tensors of one lane, in the order in which they become ready.

    A tensor without elements is in no bucket.

    >>> lane = Lane(0, 0, "auto", tf.float32, limit=16)
    >>> loads = [Load(lane, "bias", 0, (2,), ("a", "b")), Load(lane, "kernel", 1, (5,), ("c", "d"))]
    >>> [[(stretch.load.label, stretch.start, stretch.size) for stretch in bucket] for bucket in fill(loads)]
    [[('bias', 0, 2)], [('kernel', 0, 4)], [('kernel', 4, 1)]]
    """
    if not loads:
        return []
    lane = loads[0].lane
    limit = max(lane.limit_of(sum(load.size for load in loads) * lane.dtype.size) // lane.dtype.size, 1)
    stretches = [
        Stretch(load, start, min(limit, load.size - start))
        for load in sorted(loads, key=lambda load: load.ready) for start in range(0, load.size, limit)
    ]
    groups = packing.filled([stretch.size for stretch in stretches], limit)
    return [tuple(stretches[position] for position in group) for group in groups]


def reduce(draft: Draft, loads: Sequence[Load]) -> dict[Load, tuple[str, ...]]:
    """Add what sums these tensors; return the sum of each on every replica.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce())
    >>> gradients = [draft.editor.constant(f"gradient{index}", [1.0, 2.0], tf.float32) for index in range(2)]
    >>> load = Load(Lane(0, 0, "auto", tf.float32, limit=16), "kernel", 1, (2,), tuple(gradients))
    >>> reduce(draft, [load])[load], draft.collectives
    (('kernel/replica0/total', 'kernel/replica1/total'), 1)
    """
    if len({replica.device for replica in draft.placement.replicas}) == 1:
        # Replicas on one device send nothing.
        device = draft.placement.replicas[0].device
        once = {load: draft.add_up(f"{load.label}/total", load.tensors, load.lane.dtype, device) for load in loads}
        return {load: (total,) * len(load.tensors) for load, total in once.items()}
    buckets = [bucket for members in grouped(loads, lambda load: load.lane).values() for bucket in fill(members)]
    arrived: dict[tuple[Load, Team], list[str]] = {}
    started: dict[tuple[int, Team], list[str]] = {}
    for bucket in sorted(buckets, key=lambda bucket: max(stretch.load.ready for stretch in bucket)):
        lane = bucket[0].load.lane
        label = f"all_reduce/{lane.occurrence}/group{lane.group}_{lane.hint}_{lane.dtype.name}/bucket{draft.buckets}"
        sizes, everyone = [stretch.size for stretch in bucket], _teams(draft.everyone, lane.hint)
        joined = {team: _joined(draft, team, label, bucket) for team in _teams(draft.placement.replicas, lane.hint)}
        found = sums(draft, label, lane.hint, lane.dtype, joined, sum(sizes), everyone)
        for team, total in found.of.items():
            name = f"{label}/{team[0].prefix}/split"
            parts = packing.cut(draft, name, total, sizes, lane.dtype, team[0].device)
            for stretch, part in zip(bucket, parts, strict=True):
                arrived.setdefault((stretch.load, team), []).append(part)
            if team in found.begun and by_machines(draft.placement.replicas, lane.hint):
                before = started.setdefault((lane.occurrence, team), [])
                if len(before) > len(everyone):
                    draft.editor.control(found.begun[team], before[-len(everyone) - 1])
                before.append(total)
        draft.buckets += 1
    totals: dict[Load, tuple[str, ...]] = {}
    for load in loads:
        own: dict[Replica, str] = {}
        for team in _teams(draft.placement.replicas, load.lane.hint):
            own |= dict.fromkeys(team, _total(draft, team, load, arrived.get((load, team), [])))
        totals[load] = tuple(own[each] or load.tensors[each.index] for each in draft.placement.replicas)
    return totals


def _teams(replicas: Sequence[Replica], hint: str) -> list[Team]:
    """Return the teams. Each team adds its tensors up first, and sends one sum.

    Over several machines, the replicas of each machine are a team: one sum for each machine crosses the network. NCCL
    does the same by itself.
    """
    return [*map(tuple, by_host(replicas))] if by_machines(replicas, hint) else [(replica,) for replica in replicas]


def by_machines(replicas: Sequence[Replica], hint: str) -> bool:
    """Whether each machine sends one sum of its replicas.

    >>> by_machines([Replica(0, "10.0.0.1:CPU:0", "/job:run/task:0/device:CPU:0")], "ring")
    False
    """
    return hint != "nccl" and len({replica.host for replica in replicas}) > 1


def _joined(draft: Draft, team: Team, label: str, bucket: Bucket) -> str:
    """Return one vector of a team's own sums of the stretches of a bucket."""
    name = f"{label}/{team[0].prefix}"
    parts = [_part(draft, team, f"{name}/part{index}", stretch) for index, stretch in enumerate(bucket)]
    return draft.join(f"{name}/joined", parts, bucket[0].load.lane.dtype, team[0].device)


def _part(draft: Draft, team: Team, name: str, stretch: Stretch) -> str:
    load, replica = stretch.load, team[0]
    flat = f"{load.label}/{replica.prefix}/flat"
    if flat not in draft.editor:
        own = [load.tensors[member.index] for member in team if load.tensors[member.index]]
        added = draft.add_up(f"{load.label}/{replica.prefix}/added", own, load.lane.dtype, replica.device)
        packing.reshaped(draft, flat, added, (load.size,), load.lane.dtype, replica.device)
    if stretch.size == load.size:
        return flat
    # A slice that starts at an aligned address, as that of a large tensor does, is a view and no copy.
    bounds = [
        draft.editor.constant(f"{name}/{key}", [value], tf.int32, replica.device)
        for key, value in (("begin", stretch.start), ("size", stretch.size))
    ]
    return draft.editor.add("Slice", name, [flat, *bounds], replica.device, T=load.lane.dtype, Index=tf.int32)


def _total(draft: Draft, team: Team, load: Load, parts: Sequence[str]) -> str:
    """Return a team's sum in the tensor's shape; empty for a tensor without elements, which is its own sum."""
    if not parts:
        return ""
    replica = team[0]
    name = f"{load.label}/{replica.prefix}/total"
    joined = draft.join(f"{name}/joined", parts, load.lane.dtype, replica.device)
    return packing.reshaped(draft, name, joined, load.shape, load.lane.dtype, replica.device)
