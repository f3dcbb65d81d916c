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
        return ps_text(self.destinations, self.local_replication, self.sync, self.staleness, self.gathered)


@dataclass(frozen=True)
class AllReducePlan:
    """Every replica holds the variable and runs its update. A collective sums the gradients over the replicas.

    >>> print(AllReducePlan(group=3))
    all_reduce(group=3)
    """

    spec: str = "NCCL"
    compressor: str = "NoneCompressor"
    group: int = 0
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
        return all_reduce_text(
            self.spec, self.compressor, group=self.group, rank=self.power_sgd_rank, bucket=self.bucket_bytes,
            wire=self.wire_dtype, factor_rows=self.factor_rows,
        )


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


def lower_all_reduce(message: synchronizers_pb2.AllReduceSynchronizer, index: int) -> AllReducePlan:
    """Return an AllReduceSynchronizer message as a frozen value.

    ``index`` is the number of the piece in the strategy. It gives the group if the message has a ``chunk_size`` and no
    ``group``.

    >>> lower_all_reduce(synchronizers_pb2.AllReduceSynchronizer(chunk_size=2), index=5).group
    2
    >>> lower_all_reduce(synchronizers_pb2.AllReduceSynchronizer(chunk_size=2, group=0), index=5).group
    0
    """
    group = index // message.chunk_size if message.chunk_size and not message.HasField("group") else message.group
    compressor = COMPRESSORS[message.compressor]
    rank = (message.power_sgd_rank or POWER_SGD_RANK) if compressor == "PowerSGDCompressor" else 0
    return AllReducePlan(
        SPECS[message.spec], compressor, group, message.chunk_size, rank, message.bucket_bytes or BUCKET_BYTES,
        WIRE_DTYPES[message.wire_dtype], message.factor_rows,
    )


def ps_text(
    places: tuple[str, ...], local_replication: bool, sync: bool, staleness: int, gathered: bool = False
) -> str:
    """Return a PSPlan as text: the destinations, and every setting that differs from the builders' defaults.

    >>> ps_text(("a:CPU:0", "b:CPU:0"), local_replication=True, sync=False, staleness=0)
    'ps(a:CPU:0, b:CPU:0, local_replication=True, sync=False)'
    """
    parts = [*places]
    parts += ["local_replication=True"] if local_replication else []
    parts += [] if sync else ["sync=False"]
    parts += [f"staleness={staleness}"] if staleness else []
    parts += ["gathered=True"] if gathered else []
    return f"ps({', '.join(parts)})"


def all_reduce_text(
    spec: str, compressor: str, group: int | None = None, chunk_size: int = 0, rank: int = 0, bucket: int = 0,
    wire: str = "float16", factor_rows: int = 0,
) -> str:
    """Return an AllReducePlan as text: the group, and every setting that differs from the builders' defaults.

    ``chunk_size`` is printed if there is no group yet.

    >>> all_reduce_text("NCCL", "PowerSGDCompressor", chunk_size=128, rank=4)
    'all_reduce(chunk_size=128, compressor=PowerSGDCompressor, rank=4)'
    """
    parts = [f"chunk_size={chunk_size}" if group is None and chunk_size else f"group={group or 0}"]
    parts += [f"spec={spec}"] if spec != "NCCL" else []
    parts += [f"compressor={compressor}"] if compressor != "NoneCompressor" else []
    parts += [f"rank={rank}"] if rank else []
    parts += [f"wire_dtype={wire}"] if wire != "float16" else []
    parts += [f"bucket_bytes={bucket}"] if bucket not in (0, BUCKET_BYTES) else []
    parts += [f"factor_rows={factor_rows}"] if factor_rows else []
    return f"all_reduce({', '.join(parts)})"


def split_text(config: PartitionerConfig) -> str:
    """Return a partitioning as text: the axis and the number of shards.

    >>> split_text(PartitionerConfig(partition_str="1,4"))
    'split(axis=1, shards=4)'
    """
    return f"split(axis={config.axis}, shards={config.num_shards})"
