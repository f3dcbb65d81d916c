"""How one variable is synchronized, as plain values that print; read from the messages and by every later stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autodist_core.proto import synchronizers_pb2
from autodist_core.strategy.partition import PartitionerConfig

__all__ = [
    "COMPRESSORS",
    "BUCKET_BYTES",
    "HALF_PRECISION",
    "SPECS",
    "WIRE_DTYPES",
    "AllReducePlan",
    "PSPlan",
    "Synchronizer",
    "all_reduce_text",
    "destinations",
    "lower_all_reduce",
    "lower_ps",
    "ps_text",
    "split_text",
]

SPECS: Mapping[int, str] = {number: name for name, number in synchronizers_pb2.AllReduceSynchronizer.Spec.items()}
"""The implementations of the collective, by number."""
COMPRESSORS: Mapping[int, str] = {
    number: name for name, number in synchronizers_pb2.AllReduceSynchronizer.Compressor.items()
}
"""The compressors, by number."""
WIRE_DTYPES: Mapping[int, str] = {
    number: name for name, number in synchronizers_pb2.AllReduceSynchronizer.WireDtype.items()
}
"""The types of half precision that may travel, by number."""
HALF_PRECISION = ("HorovodCompressor", "HorovodCompressorEF")
"""The compressors that send another type."""
BUCKET_BYTES = 4 << 20
"""How much travels in one collective unless a strategy says otherwise."""
POWER_SGD_RANK = 2
"""The rank of PowerSGDCompressor's matrices unless a strategy says otherwise."""


@dataclass(frozen=True)
class PSPlan:
    """The variable lives on its destinations: one, or for a split variable those of its shards, in order.

    >>> print(PSPlan(("10.0.0.1:CPU:0",), staleness=2))
    ps(10.0.0.1:CPU:0, staleness=2)
    """

    destinations: tuple[str, ...]
    local_replication: bool = False
    sync: bool = True
    staleness: int = 0

    def __str__(self) -> str:
        return ps_text(self.destinations, self.local_replication, self.sync, self.staleness)


@dataclass(frozen=True)
class AllReducePlan:
    """Every replica holds the variable.

    >>> print(AllReducePlan(group=3))
    all_reduce(group=3)
    """

    spec: str = "NCCL"
    compressor: str = "NoneCompressor"
    group: int = 0
    chunk_size: int = 0
    """As the strategy says it; 0 where it gives groups instead. ``group`` is what counts."""
    power_sgd_rank: int = 0
    """The rank of PowerSGDCompressor's matrices; 0 for the other compressors."""
    bucket_bytes: int = BUCKET_BYTES
    """How much travels in one collective."""
    wire_dtype: str = "float16"
    """What travels in place of wider floats, where the compressor is one of half precision."""

    def __str__(self) -> str:
        return all_reduce_text(
            self.spec, self.compressor, group=self.group, rank=self.power_sgd_rank, bucket=self.bucket_bytes,
            wire=self.wire_dtype,
        )


Synchronizer = PSPlan | AllReducePlan


def destinations(message: synchronizers_pb2.PSSynchronizer) -> tuple[str, ...]:
    """The destinations, whichever of the two fields holds them."""
    return tuple(message.reduction_destinations) or tuple(filter(None, [message.reduction_destination]))


def lower_ps(message: synchronizers_pb2.PSSynchronizer) -> PSPlan:
    """The plain value of a message."""
    return PSPlan(destinations(message), message.local_replication, message.sync, message.staleness)


def lower_all_reduce(message: synchronizers_pb2.AllReduceSynchronizer, index: int) -> AllReducePlan:
    """The plain value of a message; ``index`` counts the strategy's pieces, for a ``chunk_size`` without a ``group``.

    >>> lower_all_reduce(synchronizers_pb2.AllReduceSynchronizer(chunk_size=2), index=5).group
    2
    >>> lower_all_reduce(synchronizers_pb2.AllReduceSynchronizer(chunk_size=2, group=0), index=5).group
    0
    """
    derived = index // message.chunk_size if message.chunk_size and not message.HasField("group") else message.group
    compressor = COMPRESSORS[message.compressor]
    rank = (message.power_sgd_rank or POWER_SGD_RANK) if compressor == "PowerSGDCompressor" else 0
    return AllReducePlan(
        SPECS[message.spec], compressor, derived, message.chunk_size, rank, message.bucket_bytes or BUCKET_BYTES,
        WIRE_DTYPES[message.wire_dtype],
    )


def ps_text(places: tuple[str, ...], local_replication: bool, sync: bool, staleness: int) -> str:
    """``ps(...)`` with the destinations, and with what differs from the builders' defaults."""
    parts = [*places]
    parts += ["local_replication=True"] if local_replication else []
    parts += [] if sync else ["sync=False"]
    parts += [f"staleness={staleness}"] if staleness else []
    return f"ps({', '.join(parts)})"


def all_reduce_text(
    spec: str, compressor: str, group: int | None = None, chunk_size: int = 0, rank: int = 0, bucket: int = 0,
    wire: str = "float16",
) -> str:
    """``all_reduce(...)`` with the group or what gives it, and with what differs from the builders' defaults."""
    parts = [f"chunk_size={chunk_size}" if group is None and chunk_size else f"group={group or 0}"]
    parts += [f"spec={spec}"] if spec != "NCCL" else []
    parts += [f"compressor={compressor}"] if compressor != "NoneCompressor" else []
    parts += [f"rank={rank}"] if rank else []
    parts += [f"wire_dtype={wire}"] if wire != "float16" else []
    parts += [f"bucket_bytes={bucket}"] if bucket not in (0, BUCKET_BYTES) else []
    return f"all_reduce({', '.join(parts)})"


def split_text(config: PartitionerConfig) -> str:
    """``split(...)`` with the axis and the number of shards."""
    return f"split(axis={config.axis}, shards={config.num_shards})"
