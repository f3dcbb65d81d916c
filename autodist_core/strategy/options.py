"""What the builders of this package share: their options, and the choice of a device for each piece.

The option classes check what a user passed, and make the synchronizers of nodes of it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autodist_core.errors import StrategyError, did_you_mean
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem, Variable
from autodist_core.strategy.factor_rows import factor_rows
from autodist_core.strategy.partition import shard_sizes
from autodist_core.strategy.strategy import COMPRESSORS, SPECS, WIRE_DTYPES
from autodist_core.strategy.synchronizers import (
    BUCKET_BYTES,
    HALF_PRECISION,
    POWER_SGD_RANK,
    AllReducePlan,
    Node,
    PSPlan,
)
from autodist_core.strategy.wire import wire


def replica_devices(resource_spec: ResourceSpec) -> list[str]:
    """Return the names of the cluster's replicas: all GPUs, and the CPU devices of nodes without GPUs.

    >>> replica_devices(ResourceSpec.local(cpus=2))
    ['localhost:CPU:0', 'localhost:CPU:1']
    """
    return [name for name, _ in resource_spec.replica_devices]


def reduction_devices(resource_spec: ResourceSpec) -> list[str]:
    """Return the names of the devices that may hold variables for all replicas: the CPU devices of all nodes.

    >>> reduction_devices(ResourceSpec.local(cpus=2))
    ['localhost:CPU:0', 'localhost:CPU:1']
    """
    return [name for name, _ in resource_spec.cpu_devices]


_MOST = 2**31 - 1
"""The largest integer of an option: some fields of a strategy's messages have 32 bits."""


def check_integer(whose: str, key: str, value: object, least: int) -> None:
    """Refuse a value of the option ``key`` that is not an integer from ``least`` to the most that a strategy holds.

    ``whose`` names the builder in the message. ``True`` and ``False`` are not integers here.

    >>> check_integer("PS", "staleness", -1, 0)
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: PS(staleness=-1): staleness is an integer from 0 to 2147483647.
    """
    if type(value) is not int or not least <= value <= _MOST:
        raise StrategyError(f"{whose}({key}={value!r}): {key} is an integer from {least} to {_MOST}.")


def _check_bool(whose: str, key: str, value: object) -> None:
    if not isinstance(value, bool):
        raise StrategyError(f"{whose}({key}={value!r}): {key} is True or False. Received: {type(value).__name__}.")


def check_choice(
    whose: str, key: str, value: object, known: Iterable[str], hints: Mapping[str, str] | None = None
) -> None:
    """Refuse a value that is not known. `hints` has what to say of some other values.

    >>> check_choice("AllReduce", "all_reduce_spec", "RNIG", ["NCCL", "RING"])
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: AllReduce(all_reduce_spec='RNIG'): unknown all_reduce_spec. Did you mean 'RING'?
        Known: NCCL, RING.
    """
    names = list(known)
    if value not in names:
        hint = (hints or {}).get(str(value)) or did_you_mean(str(value), names)
        raise StrategyError(f"{whose}({key}={value!r}): unknown {key}.{hint} Known: {', '.join(names)}.")


@dataclass(frozen=True)
class PSOptions:
    """The options of a builder that puts variables on parameter servers.

    >>> print(PSOptions(staleness=2).ps("10.0.0.1:CPU:0"))
    ps(10.0.0.1:CPU:0, staleness=2)
    """

    local_proxy_variable: bool = False
    """Whether each node has a copy of the variable that the replicas of the node read."""
    sync: bool = True
    """Whether an update waits for the gradients of all replicas."""
    staleness: int = 0
    """The number of steps by which a replica may be ahead of the slowest replica."""

    def __post_init__(self) -> None:
        """Refuse options that cannot be carried out."""
        whose = type(self).__name__
        _check_bool(whose, "local_proxy_variable", self.local_proxy_variable)
        _check_bool(whose, "sync", self.sync)
        check_integer(whose, "staleness", self.staleness, 0)
        if self.staleness and not self.sync:
            raise StrategyError(
                f"{whose}(staleness={self.staleness}, sync=False): staleness bounds a synchronous run; "
                "set sync=True or staleness=0."
            )

    def ps(self, place: str) -> PSPlan:
        """Return how a variable or a shard that lives on the device ``place`` is synchronized."""
        return PSPlan((place,), self.local_proxy_variable, self.sync, self.staleness)


@dataclass(frozen=True)
class AllReduceOptions:
    """The options of a builder that all-reduces gradients.

    >>> print(AllReduceOptions(chunk_size=2).all_reduce(5))
    all_reduce(group=2)
    """

    chunk_size: int = 128
    """The number of consecutive pieces in one group. A piece is a shard, or a variable that is not partitioned."""
    all_reduce_spec: str = "NCCL"
    """How gradients are added up: AUTO, NCCL or RING. A device without it uses another way."""
    compressor: str = "NoneCompressor"
    """The compressor that makes gradients smaller before they travel."""
    bucket_bytes: int = field(default=BUCKET_BYTES, kw_only=True)
    """The most bytes of one bucket, of half precision half of it. Smaller gradients are merged, larger ones cut."""
    wire_dtype: str = field(default="float16", kw_only=True)
    """The type that the compressors of half precision send: float16 or bfloat16."""
    power_sgd_rank: int = field(default=POWER_SGD_RANK, kw_only=True)
    """The number of columns of PowerSGDCompressor's two matrices."""
    factor_rows: int | None = field(default=None, kw_only=True)
    """The most examples of a batch for which the factors of a kernel's gradient travel between machines.

    None: as many as pay for the kernel, the compressor and the network. 0: the gradients travel always."""

    def __post_init__(self) -> None:
        """Refuse options that cannot be carried out."""
        whose = type(self).__name__
        check_integer(whose, "chunk_size", self.chunk_size, 1)
        check_choice(whose, "all_reduce_spec", self.all_reduce_spec, SPECS)
        types = {
            name: f" It is a wire_dtype: compressor='HorovodCompressor', wire_dtype={name!r}."
            for name in WIRE_DTYPES
        }
        check_choice(whose, "compressor", self.compressor, COMPRESSORS, types)
        check_integer(whose, "bucket_bytes", self.bucket_bytes, 1)
        check_choice(whose, "wire_dtype", self.wire_dtype, WIRE_DTYPES)
        check_integer(whose, "power_sgd_rank", self.power_sgd_rank, 1)
        if self.factor_rows is not None:
            check_integer(whose, "factor_rows", self.factor_rows, 0)
        for key, default, needed in (
            ("wire_dtype", "float16", HALF_PRECISION), ("power_sgd_rank", POWER_SGD_RANK, ("PowerSGDCompressor",)),
        ):
            if getattr(self, key) != default and self.compressor not in needed:
                raise StrategyError(
                    f"{whose}({key}={getattr(self, key)!r}, compressor={self.compressor!r}): {key} is for "
                    f"compressor={' or '.join(map(repr, needed))}; set it, or leave {key} out."
                )

    def all_reduce(self, index: int) -> AllReducePlan:
        """Return how piece number ``index`` of the strategy is synchronized."""
        rank = self.power_sgd_rank if self.compressor == "PowerSGDCompressor" else 0
        return AllReducePlan(
            self.all_reduce_spec, self.compressor, index // self.chunk_size, 0, rank, self.bucket_bytes, self.wire_dtype
        )

    def all_reduce_whole(self, index: int, variable: Variable, resource_spec: ResourceSpec) -> AllReducePlan:
        """Return the same of a piece that is a variable in one piece: the factors of its gradient may travel."""
        plan = self.all_reduce(index)
        sent = wire(plan, variable.shape, variable.dtype).bytes
        return replace(plan, factor_rows=factor_rows(self.factor_rows, variable, sent, resource_spec))


class LoadBalancer:
    """Gives each piece to the device that holds the fewest bytes so far, and to the first of several such devices.

    >>> balancer = LoadBalancer(["a", "b"])
    >>> [balancer.spread([size])[0] for size in (100, 10, 20, 5, 200)]
    ['a', 'b', 'b', 'b', 'b']
    """

    def __init__(self, devices: Sequence[str], shares: Sequence[int] = ()) -> None:
        """With `shares`, the bytes of the devices are in proportion to them, and so are the shards of a variable."""
        self._loads = dict.fromkeys(devices, 0.0)
        self._shares = dict(zip(devices, shares, strict=True)) if shares else {}

    def spread(self, sizes: Iterable[int]) -> list[str]:
        """Return the devices for the shards of one variable, given the bytes of each shard.

        No device gets another shard before all other devices have as many shards of this variable. Without this rule,
        all shards of a small variable would go to the device with the fewest bytes, and the split would be useless.

        >>> balancer = LoadBalancer(["a", "b"])
        >>> balancer.spread([100]), balancer.spread([4, 4, 4])
        (['a'], ['b', 'a', 'b'])
        """
        places, sizes = list[str](), list(sizes)
        in_order = iter(self._shares if len(sizes) > 1 else ())
        for size in sizes:
            least = min(self._loads, key=lambda device: (places.count(device), self._loads[device]))
            device = next(in_order, least)
            self._loads[device] += size / self._shares.get(device, 1)
            places.append(device)
        return places


def spread(
    graph_item: GraphItem, options: PSOptions, servers: Sequence[str], cut: Callable[[Variable], tuple[int, int]],
    of_shards: Callable[[Variable, int], Mapping[str, Any]] = lambda variable, axis: {}, shares: Sequence[int] = (),
) -> list[Node]:
    """Return nodes that put all variables, or their shards, on servers.

    `cut` says along which axis a variable is split, and in how many shards; 1 stands for a whole variable.
    `of_shards` gives further settings of the shards of a variable along an axis. `shares` are what the servers hold in
    proportion to each other; a split variable has a shard on each then.

    >>> item = GraphItem((Variable("w", (6, 4), "float32"), Variable("b", (4,), "float32")))
    >>> print(*spread(item, PSOptions(), ["a:CPU:0", "b:CPU:0"], lambda variable: (0, len(variable.shape))), sep="\\n")
    split(axis=0, shards=2) ps(a:CPU:0, b:CPU:0)
    ps(a:CPU:0)
    """
    balancer, nodes = LoadBalancer(servers, shares), []
    for variable in graph_item.trainable_var_op_to_var.values():
        axis, shards = cut(variable)
        sizes = [variable.byte_size]
        if shards > 1:
            entry_bytes = variable.byte_size // variable.shape[axis]
            sizes = [entry_bytes * size for size in shard_sizes(variable.shape[axis], shards, shares)]
        how = of_shards(variable, axis) if shards > 1 else {}
        used = [replace(options.ps(place), **how) for place in balancer.spread(sizes)]
        nodes.append(Node.of(variable, used, axis, shares if shards > 1 else ()))
    return nodes
