"""The two synchronizers as frozen values: `PSPlan` and `AllReducePlan`.

A synchronizer says how the gradients of one variable, or of one shard, are combined and where its update runs. The
compiler reads the protobuf messages with :func:`lower_ps` and :func:`lower_all_reduce`. Every later stage reads the
values that these functions return.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from autodist_core.proto import synchronizers_pb2
from autodist_core.strategy.partition import PartitionerConfig

SPECS: Mapping[int, str] = {number: name for name, number in synchronizers_pb2.AllReduceSynchronizer.Spec.items()}
"""The names of the implementations of a collective, by number."""
COMPRESSORS: Mapping[int, str] = {
    number: name for name, number in synchronizers_pb2.AllReduceSynchronizer.Compressor.items()
}
"""The names of the compressors, by number."""
WIRE_DTYPES: Mapping[int, str] = {
    number: name for name, number in synchronizers_pb2.AllReduceSynchronizer.WireDtype.items()
}
"""The names of the types of half precision, by number."""
HALF_PRECISION = ("HorovodCompressor", "HorovodCompressorEF")
"""The compressors that send gradients in half precision."""
BUCKET_BYTES = 4 << 20
"""The most bytes of one collective, unless a strategy says otherwise."""
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

    def __str__(self) -> str:
        parts = [*self.destinations]
        parts += ["local_replication=True"] if self.local_replication else []
        parts += [] if self.sync else ["sync=False"]
        parts += [f"staleness={self.staleness}"] if self.staleness else []
        parts += ["gathered=True"] if self.gathered else []
        return f"ps({', '.join(parts)})"


@dataclass(frozen=True)
class AllReducePlan:
    """Every replica holds the variable and runs its update. A collective sums the gradients over the replicas.

    As text it has the group, and every setting that differs from the builders' defaults.

    >>> print(AllReducePlan(group=3))
    all_reduce(group=3)
    >>> print(AllReducePlan("RING", "PowerSGDCompressor", None, chunk_size=128, power_sgd_rank=4))
    all_reduce(chunk_size=128, spec=RING, compressor=PowerSGDCompressor, rank=4)
    """

    spec: str = "NCCL"
    compressor: str = "NoneCompressor"
    group: int | None = 0
    """The number of the group; None if the strategy is not compiled and has a ``chunk_size`` only."""
    chunk_size: int = 0
    """The strategy's ``chunk_size``; 0 if the strategy gives groups. Later stages read ``group`` instead."""
    power_sgd_rank: int = 0
    """The rank of PowerSGDCompressor's matrices; 0 for the other compressors."""
    bucket_bytes: int = BUCKET_BYTES
    """The most bytes of one collective."""
    wire_dtype: str = "float16"
    """The type that a compressor of half precision sends."""
    factor_rows: int = 0
    """The most examples of a batch for which the factors of the gradient travel between machines."""

    def __str__(self) -> str:
        parts = [f"chunk_size={self.chunk_size}" if self.group is None else f"group={self.group}"]
        parts += [f"spec={self.spec}"] if self.spec != "NCCL" else []
        parts += [f"compressor={self.compressor}"] if self.compressor != "NoneCompressor" else []
        parts += [f"rank={self.power_sgd_rank}"] if self.power_sgd_rank else []
        parts += [f"wire_dtype={self.wire_dtype}"] if self.wire_dtype != "float16" else []
        parts += [f"bucket_bytes={self.bucket_bytes}"] if self.bucket_bytes != BUCKET_BYTES else []
        parts += [f"factor_rows={self.factor_rows}"] if self.factor_rows else []
        return f"all_reduce({', '.join(parts)})"


Synchronizer = PSPlan | AllReducePlan


def destinations(message: synchronizers_pb2.PSSynchronizer) -> tuple[str, ...]:
    """Return the destinations of a message. One of its two fields holds them.

    >>> destinations(synchronizers_pb2.PSSynchronizer(reduction_destination="a:CPU:0"))
    ('a:CPU:0',)
    """
    return tuple(message.reduction_destinations) or tuple(filter(None, [message.reduction_destination]))


def lower_ps(message: synchronizers_pb2.PSSynchronizer) -> PSPlan:
    """Return a PSSynchronizer message as a frozen value.

    >>> print(lower_ps(synchronizers_pb2.PSSynchronizer(reduction_destination="a:CPU:0", sync=True, staleness=2)))
    ps(a:CPU:0, staleness=2)
    """
    return PSPlan(
        destinations(message), message.local_replication, message.sync, message.staleness, message.gathered
    )


def lower_all_reduce(message: synchronizers_pb2.AllReduceSynchronizer, index: int | None) -> AllReducePlan:
    """Return an AllReduceSynchronizer message as a frozen value. Numbers without a name stand for themselves.

    ``index`` is the number of the piece in the strategy. It gives the group if the message has a ``chunk_size`` and no
    ``group``. Without it, there is no group yet.

    >>> lower_all_reduce(synchronizers_pb2.AllReduceSynchronizer(chunk_size=2), index=5).group
    2
    >>> lower_all_reduce(synchronizers_pb2.AllReduceSynchronizer(chunk_size=2, group=0), index=5).group
    0
    """
    group: int | None = message.group
    if message.chunk_size and not message.HasField("group"):
        group = None if index is None else index // message.chunk_size
    compressor = COMPRESSORS.get(message.compressor, str(message.compressor))
    rank = (message.power_sgd_rank or POWER_SGD_RANK) if compressor == "PowerSGDCompressor" else 0
    return AllReducePlan(
        SPECS.get(message.spec, str(message.spec)), compressor, group, message.chunk_size, rank,
        message.bucket_bytes or BUCKET_BYTES, WIRE_DTYPES.get(message.wire_dtype, str(message.wire_dtype)),
        message.factor_rows,
    )


def split_text(config: PartitionerConfig) -> str:
    """Return a partitioning as text: the axis and the number of shards.

    >>> split_text(PartitionerConfig(partition_str="1,4"))
    'split(axis=1, shards=4)'
    """
    return f"split(axis={config.axis}, shards={config.num_shards})"
