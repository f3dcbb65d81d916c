"""What the builders of this package share: their options, and the choice of a device for each piece.

The option classes check what a user passed, and write it into the nodes of a Strategy.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autodist_core.errors import StrategyError, did_you_mean
from autodist_core.proto import strategy_pb2, synchronizers_pb2
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem, Variable
from autodist_core.strategy.factor_rows import factor_rows
from autodist_core.strategy.partition import PartitionerConfig, shard_sizes
from autodist_core.strategy.strategy import Strategy
from autodist_core.strategy.synchronizers import (
    BUCKET_BYTES,
    COMPRESSORS,
    HALF_PRECISION,
    POWER_SGD_RANK,
    SPECS,
    WIRE_DTYPES,
    AllReducePlan,
)
from autodist_core.strategy.wire import wire


def begin(resource_spec: ResourceSpec) -> Strategy:
    """Return a strategy that has the cluster's replicas and no variables yet.

    The replicas are all GPUs, and the CPU devices of nodes without GPUs.

    >>> print(begin(ResourceSpec.local(cpus=1)))
    strategy ... @ 1 replica
      replica localhost:CPU:0
    """
    strategy = Strategy()
    strategy.graph_config.replicas.extend(name for name, _ in resource_spec.replica_devices)
    return strategy


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

    >>> node = strategy_pb2.Strategy.Node(var_name="w")
    >>> PSOptions(staleness=2).write_ps(node, "10.0.0.1:CPU:0")
    >>> node.PSSynchronizer.staleness, node.PSSynchronizer.sync
    (2, True)
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

    def write_ps(self, node: strategy_pb2.Strategy.Node, place: str) -> None:
        """Write into ``node`` that its variable lives on the device ``place``."""
        node.PSSynchronizer.CopyFrom(synchronizers_pb2.PSSynchronizer(
            reduction_destinations=[place], local_replication=self.local_proxy_variable, sync=self.sync,
            staleness=self.staleness,
        ))  # fmt: skip


@dataclass(frozen=True)
class AllReduceOptions:
    """The options of a builder that all-reduces gradients.

    >>> node = strategy_pb2.Strategy.Node(var_name="w")
    >>> AllReduceOptions(chunk_size=2).write_all_reduce(node, 5)
    >>> node.AllReduceSynchronizer.group
    2
    """

    chunk_size: int = 128
    """The number of consecutive pieces in one group. A piece is a shard, or a variable that is not partitioned."""
    all_reduce_spec: str = "NCCL"
    """The implementation of the collective: AUTO, NCCL or RING. A device without it uses another one."""
    compressor: str = "NoneCompressor"
    """The compressor that makes gradients smaller before they travel."""
    bucket_bytes: int = field(default=BUCKET_BYTES, kw_only=True)
    """The most bytes of one collective, of half precision half of it. Smaller gradients are merged, larger ones cut."""
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
        check_choice(whose, "all_reduce_spec", self.all_reduce_spec, SPECS.values())
        types = {
            name: f" It is a wire_dtype: compressor='HorovodCompressor', wire_dtype={name!r}."
            for name in WIRE_DTYPES.values()
        }
        check_choice(whose, "compressor", self.compressor, COMPRESSORS.values(), types)
        check_integer(whose, "bucket_bytes", self.bucket_bytes, 1)
        check_choice(whose, "wire_dtype", self.wire_dtype, WIRE_DTYPES.values())
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

    def rows_of(self, variable: Variable, resource_spec: ResourceSpec) -> int:
        """Return the most examples of a batch for which the factors of the variable's gradient travel."""
        plan = AllReducePlan(compressor=self.compressor, wire_dtype=self.wire_dtype, power_sgd_rank=self.power_sgd_rank)
        sent = wire(plan, variable.shape, variable.dtype).bytes
        return factor_rows(self.factor_rows, variable, sent, resource_spec)

    def write_all_reduce(self, node: strategy_pb2.Strategy.Node, index: int, rows: int = 0) -> None:
        """Write into ``node`` that its piece, number ``index`` of the strategy, is all-reduced.

        ``rows`` is the most examples of a batch for which factors travel.
        """
        # A default is not written, so that the message equals one of a version without these fields.
        node.AllReduceSynchronizer.CopyFrom(synchronizers_pb2.AllReduceSynchronizer(
            spec=self.all_reduce_spec, compressor=self.compressor, group=index // self.chunk_size,
            bucket_bytes=0 if self.bucket_bytes == BUCKET_BYTES else self.bucket_bytes, wire_dtype=self.wire_dtype,
            power_sgd_rank=0 if self.power_sgd_rank == POWER_SGD_RANK else self.power_sgd_rank, factor_rows=rows,
        ))  # fmt: skip


class LoadBalancer:
    """Gives each piece to the device that holds the fewest bytes so far, and to the first of several such devices.

    >>> balancer = LoadBalancer(["a", "b"])
    >>> [balancer.spread([size])[0] for size in (100, 10, 20, 5, 200)]
    ['a', 'b', 'b', 'b', 'b']
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._loads = dict.fromkeys(devices, 0)

    def spread(self, sizes: Iterable[int]) -> list[str]:
        """Return the devices for the shards of one variable, given the bytes of each shard.

        No device gets another shard before all other devices have as many shards of this variable. Without this rule,
        all shards of a small variable would go to the device with the fewest bytes, and the split would be useless.

        >>> balancer = LoadBalancer(["a", "b"])
        >>> balancer.spread([100]), balancer.spread([4, 4, 4])
        (['a'], ['b', 'a', 'b'])
        """
        places: list[str] = []
        for size in sizes:
            device = min(self._loads, key=lambda device: (places.count(device), self._loads[device]))
            self._loads[device] += size
            places.append(device)
        return places


def spread(
    strategy: Strategy, graph_item: GraphItem, options: PSOptions, servers: Sequence[str],
    cut: Callable[[Variable], tuple[int, int]],
) -> int:
    """Put all variables, or their shards, on servers, and return how many variables are whole.

    `cut` says along which axis a variable is split, and in how many shards; 1 stands for a whole variable.

    >>> item, spec = GraphItem((Variable("w", (6, 4), "float32"), Variable("b", (4,), "float32"))), ResourceSpec.local()
    >>> strategy = begin(spec)
    >>> spread(strategy, item, PSOptions(), reduction_devices(spec), lambda variable: (0, len(variable.shape)))
    1
    >>> print(str(strategy).splitlines()[-2])
      w : split(axis=0, shards=2) ps(localhost:CPU:0, localhost:CPU:1)
    """
    balancer, whole = LoadBalancer(servers), 0
    for variable in graph_item.trainable_var_op_to_var.values():
        node, (axis, shards) = strategy.node_config.add(var_name=variable.name), cut(variable)
        if shards == 1:
            whole += 1
            options.write_ps(node, balancer.spread([variable.byte_size])[0])
            continue
        node.partitioner = PartitionerConfig.along(axis, shards, len(variable.shape)).partition_str
        entry_bytes = variable.byte_size // variable.shape[axis]
        places = balancer.spread(entry_bytes * size for size in shard_sizes(variable.shape[axis], shards))
        for index, place in enumerate(places):
            options.write_ps(node.part_config.add(var_name=variable.part_name(index)), place)
    return whole
