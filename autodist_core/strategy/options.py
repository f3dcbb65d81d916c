"""What builders share: their options, which check themselves and write themselves into a strategy's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from autodist_core.errors import StrategyError, did_you_mean
from autodist_core.proto import strategy_pb2, synchronizers_pb2
from autodist_core.resource_spec import ResourceSpec
from autodist_core.strategy.strategy import Strategy
from autodist_core.strategy.synchronizers import (
    BUCKET_BYTES,
    COMPRESSORS,
    HALF_PRECISION,
    POWER_SGD_RANK,
    SPECS,
    WIRE_DTYPES,
)

__all__ = ["AllReduceOptions", "LoadBalancer", "PSOptions", "begin", "check_integer", "reduction_devices"]


def begin(resource_spec: ResourceSpec) -> Strategy:
    """A strategy without variables whose replicas are every GPU, and the CPUs of nodes without GPUs."""
    strategy = Strategy()
    strategy.graph_config.replicas.extend(name for name, _ in resource_spec.replica_devices)
    return strategy


def reduction_devices(resource_spec: ResourceSpec) -> list[str]:
    """The devices that can hold a variable for all: the nodes' CPUs."""
    return [name for name, _ in resource_spec.cpu_devices]


def check_integer(whose: str, key: str, value: object, least: int) -> None:
    """Refuses what is not an integer of at least ``least``; ``True`` is none."""
    if type(value) is not int:
        raise StrategyError(f"{whose}({key}={value!r}): {key} is an integer. Received: {type(value).__name__}.")
    if value < least:
        raise StrategyError(f"{whose}({key}={value}): {key} is at least {least}.")


def _check_bool(whose: str, key: str, value: object) -> None:
    if not isinstance(value, bool):
        raise StrategyError(f"{whose}({key}={value!r}): {key} is True or False. Received: {type(value).__name__}.")


def _check_choice(whose: str, key: str, value: object, known: Iterable[str]) -> None:
    names = list(known)
    if value not in names:
        hint = did_you_mean(str(value), names)
        raise StrategyError(f"{whose}({key}={value!r}): unknown {key}.{hint} Known: {', '.join(names)}.")


@dataclass(frozen=True)
class PSOptions:
    """How a builder's parameter servers work."""

    local_proxy_variable: bool = False
    """Whether each worker keeps a local copy that its replicas read."""
    sync: bool = True
    """Whether an update waits for all replicas."""
    staleness: int = 0
    """How many steps a replica may be ahead of the slowest."""

    def check_ps(self, whose: str) -> None:
        """Refuses options that cannot be carried out, in the name of the builder ``whose``."""
        _check_bool(whose, "local_proxy_variable", self.local_proxy_variable)
        _check_bool(whose, "sync", self.sync)
        check_integer(whose, "staleness", self.staleness, 0)
        if self.staleness and not self.sync:
            raise StrategyError(
                f"{whose}(staleness={self.staleness}, sync=False): staleness bounds a synchronous run; "
                "set sync=True or staleness=0."
            )

    def write_ps(self, node: strategy_pb2.Strategy.Node, place: str) -> None:
        """Makes ``node`` live on the device ``place``."""
        node.PSSynchronizer.CopyFrom(
            synchronizers_pb2.PSSynchronizer(
                reduction_destinations=[place],
                local_replication=self.local_proxy_variable,
                sync=self.sync,
                staleness=self.staleness,
            )
        )


@dataclass(frozen=True)
class AllReduceOptions:
    """How a builder's collectives work."""

    chunk_size: int = 128
    """How many consecutive variables (shards, where they are split) share a group."""
    all_reduce_spec: str = "NCCL"
    """AUTO, NCCL or RING; a hint where a device does not have it."""
    compressor: str = "NoneCompressor"
    """How gradients are made smaller before they travel."""
    bucket_bytes: int = field(default=BUCKET_BYTES, kw_only=True)
    """How much travels in one collective: smaller gradients are merged, larger ones cut."""
    wire_dtype: str = field(default="float16", kw_only=True)
    """What the compressors of half precision send: float16 or bfloat16."""
    power_sgd_rank: int = field(default=POWER_SGD_RANK, kw_only=True)
    """The number of columns of PowerSGDCompressor's two matrices."""

    def check_all_reduce(self, whose: str) -> None:
        """Refuses options that cannot be carried out, in the name of the builder ``whose``."""
        check_integer(whose, "chunk_size", self.chunk_size, 1)
        _check_choice(whose, "all_reduce_spec", self.all_reduce_spec, SPECS.values())
        _check_choice(whose, "compressor", self.compressor, COMPRESSORS.values())
        check_integer(whose, "bucket_bytes", self.bucket_bytes, 1)
        _check_choice(whose, "wire_dtype", self.wire_dtype, WIRE_DTYPES.values())
        check_integer(whose, "power_sgd_rank", self.power_sgd_rank, 1)
        for key, default, needed in (
            ("wire_dtype", "float16", HALF_PRECISION), ("power_sgd_rank", POWER_SGD_RANK, ("PowerSGDCompressor",)),
        ):
            if getattr(self, key) != default and self.compressor not in needed:
                raise StrategyError(
                    f"{whose}({key}={getattr(self, key)!r}, compressor={self.compressor!r}): {key} is for "
                    f"compressor={' or '.join(map(repr, needed))}; set it, or leave {key} out."
                )

    def write_all_reduce(self, node: strategy_pb2.Strategy.Node, index: int) -> None:
        """Makes every replica hold ``node``, which is number ``index`` of what is reduced."""
        node.AllReduceSynchronizer.CopyFrom(
            synchronizers_pb2.AllReduceSynchronizer(
                spec=self.all_reduce_spec,
                compressor=self.compressor,
                group=index // self.chunk_size,
                # What is the default stays unsaid, so that the message is that of whoever does not know the field.
                bucket_bytes=0 if self.bucket_bytes == BUCKET_BYTES else self.bucket_bytes,
                wire_dtype=self.wire_dtype,
                power_sgd_rank=0 if self.power_sgd_rank == POWER_SGD_RANK else self.power_sgd_rank,
            )
        )


class LoadBalancer:
    """Gives each piece to the device that holds the fewest bytes so far, the first of them when several do.

    >>> balancer = LoadBalancer(["a", "b"])
    >>> [balancer.place(size) for size in (100, 10, 20, 5, 200)]
    ['a', 'b', 'b', 'b', 'b']
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._loads = dict.fromkeys(devices, 0)

    def place(self, size: int) -> str:
        """The device for a piece of ``size`` bytes."""
        return self.spread([size])[0]

    def spread(self, sizes: Iterable[int]) -> list[str]:
        """The devices for the shards of one variable: none gets another one before all others have as many.

        A small variable would go to one device else, whichever has the fewest bytes, and be split for nothing.

        >>> balancer = LoadBalancer(["a", "b"])
        >>> balancer.place(100), balancer.spread([4, 4, 4])
        ('a', ['b', 'a', 'b'])
        """
        places: list[str] = []
        for size in sizes:
            device = min(self._loads, key=lambda device: (places.count(device), self._loads[device]))
            self._loads[device] += size
            places.append(device)
        return places
