"""What a strategy says, as frozen values: the two synchronizers `PSPlan` and `AllReducePlan`, and `Node`.

A synchronizer says how the gradients of one variable, or of one shard, are combined and where its update runs. A node
says it of one variable, and of each of its shards. Builders make nodes, a Strategy holds them as a message, and the
checks and the compiler read nodes again. Later stages read the synchronizers of compiled strategies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from autodist_core.errors import StrategyError
from autodist_core.step.graph_item import Variable
from autodist_core.strategy.partition import PartitionerConfig

HALF_PRECISION = ("HorovodCompressor", "HorovodCompressorEF")
"""The compressors that send gradients in half precision."""
BUCKET_BYTES = 4 << 20
"""The most bytes of one bucket, unless a strategy says otherwise."""
_MOST_SENDING = 8
"""Over more machines, collectives sum: for sends the graph has nodes for each pair of machines."""
POWER_SGD_RANK = 2
"""The rank of PowerSGDCompressor's matrices unless a strategy says otherwise."""


@dataclass(frozen=True)
class PSPlan:
    """The variable lives on a parameter server, which receives the gradients and runs the update.

    The new value then goes from the server to the replicas. A variable that is not partitioned has one destination. A
    partitioned variable has the destinations of its shards, in order.

    As text it has the destinations, and every setting that differs from the builders' defaults.

    >>> print(PSPlan(("10.0.0.1:CPU:0",), staleness=2))
    ps(10.0.0.1:CPU:0, staleness=2)
    """

    destinations: tuple[str, ...]
    local_replication: bool = False
    sync: bool = True
    staleness: int = 0
    gathered: bool = False
    """Whether replicas have no mirror of the variable: they gather it from its shards for each use."""
    again_within: int = 0
    """For how many further uses a replica keeps a gathered value. A use among these does not gather it again."""
    wire_dtype: str = ""
    """The type of half precision in which gathered values and their gradients travel; empty: as they are."""
    factor_rows: int = 0
    """For a shard: the most examples of a batch for which the factors of the gradient travel between machines."""

    def __str__(self) -> str:
        changed = _changed(self, *(name for name in vars(self) if name != "destinations"))
        return f"ps({', '.join([*self.destinations, *changed])})"


@dataclass(frozen=True)
class AllReducePlan:
    """Every replica holds the variable and runs its update. A collective or sends sum the gradients over the replicas.

    As text it has the group, and every setting that differs from the builders' defaults.

    >>> print(AllReducePlan(group=3))
    all_reduce(group=3)
    >>> print(AllReducePlan("RING", "PowerSGDCompressor", None, chunk_size=128, power_sgd_rank=4))
    all_reduce(chunk_size=128, spec=RING, compressor=PowerSGDCompressor, rank=4)
    """

    spec: str = "NCCL"
    compressor: str = "NoneCompressor"
    group: int | None = 0
    """The number of the group; None in a strategy that is not compiled and has a ``chunk_size`` only."""
    chunk_size: int = 0
    """The strategy's ``chunk_size``; 0 if the strategy gives groups. Later stages read ``group`` instead."""
    power_sgd_rank: int = 0
    """The rank of PowerSGDCompressor's matrices; 0 for the other compressors, and in a strategy for the default."""
    bucket_bytes: int = BUCKET_BYTES
    """The most bytes of one bucket."""
    wire_dtype: str = "float16"
    """The type that a compressor of half precision sends."""
    factor_rows: int = 0
    """The most examples of a batch for which the factors of the gradient travel between machines."""

    def by_sends(self, machines: int, on_cpus: bool) -> bool:
        """Whether machines send each other sums of parts of the gradients, in place of a collective of TensorFlow.

        >>> AllReducePlan().by_sends(2, on_cpus=True), AllReducePlan("RING").by_sends(2, on_cpus=True)
        (True, False)
        """
        return self.spec != "RING" and on_cpus and 1 < machines <= _MOST_SENDING

    def __str__(self) -> str:
        group = f"chunk_size={self.chunk_size}" if self.group is None else f"group={self.group}"
        changed = _changed(self, "spec", "compressor", "power_sgd_rank", "wire_dtype", "bucket_bytes", "factor_rows")
        return f"all_reduce({', '.join([group, *changed])})".replace("power_sgd_rank", "rank")


def _changed(plan: Any, *names: str) -> list[str]:
    """The settings that differ from the builders' defaults, as text."""
    return [f"{name}={getattr(plan, name)}" for name in names if getattr(plan, name) != getattr(type(plan), name)]


Synchronizer = PSPlan | AllReducePlan


@dataclass(frozen=True)
class Node:
    """What a strategy says of one variable, or of one shard. Its fields are those of the message's ``Node``.

    As text it has the partitioning, if there is one, and the synchronizers.

    >>> print(Node("bias", PSPlan(("a:CPU:0",))))
    ps(a:CPU:0)
    """

    var_name: str
    synchronizer: Synchronizer | None = None
    """That of the variable, or of the shards whose part has none."""
    partitioner: str = ""
    """The number of shards along each axis, such as ``1,2,1``, or their sizes in proportion to each other, such as
    ``1,3:4,1``; empty for a variable that is not partitioned."""
    part_config: tuple[Node, ...] = ()
    """A node for each shard, or none at all."""
    note: str = ""
    contradiction: str = ""
    """What is wrong with a message that says two things at once; empty otherwise."""

    @classmethod
    def of(
        cls, variable: Variable, synchronizers: Sequence[Synchronizer], axis: int = 0, shares: Sequence[int] = ()
    ) -> Node:
        """Return the node of a variable with one shard along ``axis`` for each synchronizer; with one, it stays whole.

        `shares` are the sizes of the shards in proportion to each other; without them the shards are alike.

        >>> node = Node.of(Variable("w", (5, 4), "float32"), [PSPlan(("a:CPU:0",)), AllReducePlan()])
        >>> print(node.partitioner, [part.var_name for part in node.part_config], node)
        2,1 ['w/part_0', 'w/part_1'] split(axis=0, shards=2) ps(a:CPU:0) + all_reduce(group=0)
        """
        if len(synchronizers) == 1:
            return cls(variable.name, synchronizers[0])
        config = PartitionerConfig.along(axis, len(synchronizers), len(variable.shape), shares)
        parts = (cls(variable.part_name(index), each) for index, each in enumerate(synchronizers))
        return cls(variable.name, None, config.partition_str, tuple(parts))

    @property
    def used(self) -> list[Synchronizer | None]:
        """The synchronizers of the shards, or the one of all shards or of the whole variable."""
        return [part.synchronizer or self.synchronizer for part in self.part_config] or [self.synchronizer]

    def __str__(self) -> str:
        if not self.partitioner and not self.part_config:
            return str(self.synchronizer or "no synchronizer")
        try:
            config = PartitionerConfig(partition_str=self.partitioner)
            how = f"axis={config.axis}, shards={config.partition_str.split(',')[config.axis]}"
        except StrategyError:
            # A strategy prints before it is checked, so a partitioner that does not parse is printed as it was written.
            how = repr(self.partitioner)
        used = [str(each or "no synchronizer") for each in self.used]
        common = common_synchronizer(self.used) or (None if any(self.used) else used[0])
        return f"split({how}) {common or ' + '.join(used)}"


def common_synchronizer(synchronizers: Sequence[Synchronizer | None]) -> Synchronizer | None:
    """The one synchronizer that equals all given ones except for destinations, with the destinations of all of them.

    The result is ``None`` if the synchronizers differ in anything but their destinations.

    >>> print(common_synchronizer([PSPlan(("a:CPU:0",)), PSPlan(("b:CPU:0",))]))
    ps(a:CPU:0, b:CPU:0)
    >>> common_synchronizer([PSPlan(("a:CPU:0",)), AllReducePlan()]) is None
    True
    """
    # As text they are alike if they do the same: a chunk_size beside a group has no effect.
    if len({str(replace(each, destinations=()) if isinstance(each, PSPlan) else each) for each in synchronizers}) > 1:
        return None
    places = tuple(place for each in synchronizers if isinstance(each, PSPlan) for place in each.destinations)
    first = synchronizers[0]
    return replace(first, destinations=places) if isinstance(first, PSPlan) else first
