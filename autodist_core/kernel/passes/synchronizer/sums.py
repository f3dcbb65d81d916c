"""Sum a vector of each team over all teams: by a collective of TensorFlow, or by sends between machines.

In: a vector of each team, the replicas of one machine or one replica. Out: the sum, on the device of each team's first
replica. By sends, over three machines::

    replica0/parts 0, 1, 2    part0/added, on the first machine     replica0/sum = parts 0, 1 and 2, added
    replica1/parts 0, 1, 2    part1/added, on the second machine    replica1/sum = parts 0, 1 and 2, added
    replica2/parts 0, 1, 2    part2/added, on the third machine     replica2/sum = parts 0, 1 and 2, added

So each link carries as many bytes as in a ring, in two messages one behind the other, however many machines there are.
TensorFlow's ring on CPUs copies what it sends more often: sends took 0.71 to 0.8 of its time where the wire was not
the limit. A step that fails does not spoil the next one either, as it does where it has collectives. But each pair of
machines has a send and a receive of its own for each bucket. Over many machines, a ring has the smaller graph.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from autodist_core.kernel import packing
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.placement.placement import Replica
from autodist_core.strategy.partition import shard_sizes
from autodist_core.strategy.synchronizers import AllReducePlan

SENDS = "sends"
"""The hint of a sum by sends; each other hint is one of TensorFlow's collectives."""

Team = tuple[Replica, ...]


@dataclass(frozen=True)
class Sums:
    """The sum of a vector on the device of each team, and the node with which it begins to travel.

    >>> Sums({}, {}).begun
    {}
    """

    of: Mapping[Team, str]
    begun: Mapping[Team, str]
    """A vector that is not cut has no such node: it is small, and waits for nothing."""


def hint_of(draft: Draft, plan: AllReducePlan) -> str:
    """Return how vectors are summed. NCCL needs GPUs; on other devices the runtime's ring computes the same sum.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> hint_of(example_draft(AllReduce()), AllReducePlan(spec="NCCL"))
    'ring'
    """
    if all(":GPU:" in replica.name for replica in draft.everyone):
        return plan.spec.lower()
    machines = len({replica.host for replica in draft.everyone})
    if plan.by_sends(machines, on_cpus=all(":CPU:" in replica.name for replica in draft.everyone)):
        return SENDS
    return "ring" if plan.spec == "NCCL" else plan.spec.lower()


def sums(
    draft: Draft, label: str, hint: str, dtype: tf.DType, vectors: Mapping[Team, str], size: int,
    everyone: Sequence[Team],
) -> Sums:
    """Add what sums a vector of so many elements over all teams; `everyone` has those for which others stand, too.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce())
    >>> teams = [(replica,) for replica in draft.everyone]
    >>> vectors = {team: draft.editor.constant(team[0].copy_of("vector"), [1.0, 2.0], tf.float32) for team in teams}
    >>> list(sums(draft, "bucket0", "ring", tf.float32, vectors, 2, teams).of.values())
    ['bucket0/replica0/sum', 'bucket0/replica1/sum']
    """
    if hint == SENDS:
        return _by_sends(draft, label, dtype, vectors, size, everyone)
    found = {}
    for team, vector in vectors.items():
        found[team] = _collective(draft, team[0], f"{label}/{team[0].prefix}/sum", vector, hint, dtype, len(everyone))
    draft.collectives += 1
    return Sums(found, found)


def _by_sends(
    draft: Draft, label: str, dtype: tf.DType, vectors: Mapping[Team, str], size: int, everyone: Sequence[Team]
) -> Sums:
    count = max(1, min(len(everyone), size * dtype.size // packing.ALONE_BYTES))
    parts: dict[Team, list[str]] = {}
    begun: dict[Team, str] = {}
    for team, vector in vectors.items():
        name = f"{label}/{team[0].prefix}/parts"
        parts[team] = packing.cut(draft, name, vector, shard_sizes(size, count), dtype, team[0].device)
        if count > 1:
            begun[team] = name
    # The names have no replica in them: where a machine stands for others, each of these sums is there once.
    added = [
        draft.add_up(f"{label}/part{place}/added", [each[place] for each in parts.values()], dtype, owner[0].device)
        for place, owner in enumerate(everyone[:count])
    ]
    found = {team: draft.join(f"{label}/{team[0].prefix}/sum", added, dtype, team[0].device) for team in vectors}
    return Sums(found, begun)


def _collective(
    draft: Draft, replica: Replica, name: str, vector: str, hint: str, dtype: tf.DType, members: int
) -> str:
    # In one session, collectives of equally many members have the same members: all replicas, or one of each machine.
    scalars = {"group_size": members, "group_key": members, "instance_key": instance_key(draft, draft.collectives)}
    inputs = [draft.editor.constant(f"{name}/{key}", value, tf.int32, replica.host) for key, value in scalars.items()]
    return draft.editor.add(
        "CollectiveReduceV2", name, [vector, *inputs], replica.device, T=dtype, merge_op="Add", final_op="Id",
        communication_hint=hint, timeout_seconds=0.0, is_stateless=False, Nordering_token=0,
        max_subdivs_per_device=-1,
    )


def instance_key(draft: Draft, number: int, keys: int = 1) -> int:
    """The first of so many numbers, a power of two, that are a collective's own, and that every replica derives alike.

    The collectives of one graph are numbered from the graph's own start. The numbers of two graphs of one session are
    apart, unless the hashes of the graphs fall close together. TensorFlow keeps the shape of a number for the whole
    session, so two graphs with equal numbers of unlike shapes fail. Equal numbers of like shapes were tried, in one
    process and over several machines: TensorFlow tells the collectives of two steps apart.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce())
    >>> instance_key(draft, 1) - instance_key(draft, 0), instance_key(draft, 1, 8) - instance_key(draft, 0, 8)
    (1, 8)
    """
    replicas, sizes = draft.slicing.of_all
    active = tuple(replica.index for replica in replicas)
    # Gradients of which the factors travel are in no bucket: the other buckets then have other shapes.
    text = f"{active}/{sizes}/{draft.step.digest}/{sorted(draft.products.travelling)}/{keys}"
    start = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    return (start + number * keys) & (0x80000000 - keys)
