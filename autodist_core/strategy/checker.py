"""The checks of a strategy against one model and one cluster.

A strategy's replicas and nodes, a GraphItem and a ResourceSpec come in, and a list of sentences goes out: one for each
reason why the strategy cannot be carried out. The compiler raises all of them at once.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from autodist_core.errors import ResourceSpecError, StrategyError, amount, did_you_mean
from autodist_core.resource_spec import DeviceSpec, ResourceSpec
from autodist_core.step.graph_item import GraphItem, Variable
from autodist_core.strategy.options import AllReduceOptions, PSOptions
from autodist_core.strategy.partition import PartitionerConfig
from autodist_core.strategy.strategy import WIRE_DTYPES
from autodist_core.strategy.synchronizers import POWER_SGD_RANK, AllReducePlan, Node, PSPlan


def variable_name(written: str) -> str:
    """Return the name of a variable as the GraphItem has it. A trailing ":0", as TensorFlow writes it, is removed.

    >>> variable_name("dense/kernel:0")
    'dense/kernel'
    """
    return written.removesuffix(":0")


def violations(replicas: Sequence[str], nodes: Sequence[Node], item: GraphItem, spec: ResourceSpec) -> list[str]:
    """Return a sentence for each reason why a strategy cannot be carried out, in the order of the strategy's nodes.

    >>> item, spec = GraphItem((Variable("w", (3, 2), "float32"),)), ResourceSpec.local(cpus=1)
    >>> violations(["localhost:CPU:0"], [Node("w", PSPlan(("localhost:CPU:0",)))], item, spec)
    []
    >>> violations(["localhost:CPU:0"], [Node("w", PSPlan(("localhost:CPU:0",), staleness=-1))], item, spec)
    ["'w': PSOptions(staleness=-1): staleness is an integer from 0 to 2147483647."]
    """
    return list(_Checker(replicas, nodes, item, spec).run())


class _Checker:
    """Yields the violations of one strategy. Each method checks one thing; ``whose`` names it in the messages."""

    def __init__(self, replicas: Sequence[str], nodes: Sequence[Node], item: GraphItem, spec: ResourceSpec) -> None:
        self.replicas, self.nodes = replicas, nodes
        self.variables = item.trainable_var_op_to_var
        self.devices = dict(spec.devices)
        self.source = spec.source

    def run(self) -> Iterator[str]:
        yield from self.of_replicas()
        names = [variable_name(node.var_name) for node in self.nodes]
        for name, times in Counter(names).items():
            if times > 1:
                yield f"variable '{name}' has {times} nodes. Keep one."
        for name, node in zip(names, self.nodes, strict=True):
            variable = self.variables.get(name)
            if variable is None:
                hint = did_you_mean(name, self.variables)
                yield f"strategy names variable '{name}', which the captured graph does not train.{hint}"
            yield from self.node(node, name, variable)
        for name in self.variables:
            if name not in names:
                yield f"trainable variable '{name}' has no node. Add one that says how it is synchronized."

    def of_replicas(self) -> Iterator[str]:
        if not self.replicas:
            yield (
                "the list of replicas is empty. Name at least one device in graph_config.replicas; "
                f"{self.source} has {', '.join(self.devices)}."
            )
        for name, times in Counter(self.replicas).items():
            if times > 1:
                yield f"replica '{name}' is listed {times} times. A device computes one part of a batch; list it once."
            yield from self.device(f"replica '{name}'", name)

    def device(self, whose: str, name: str) -> Iterator[str]:
        try:
            if DeviceSpec.parse(name).name in self.devices:
                return
            problem = f" is not in {self.source}."
        except ResourceSpecError as error:
            problem = f": {error}"
        # The search for a name that is close takes long among many devices, so it runs for an unknown name only.
        yield f"{whose}{problem}{did_you_mean(name, self.devices)} Known: {', '.join(self.devices)}."

    def node(self, node: Node, name: str, variable: Variable | None) -> Iterator[str]:
        """The violations of one node. Without a variable, only those that do not depend on the variable."""
        whose = f"'{name}'"
        parts = node.part_config
        if parts and not node.partitioner:
            yield f"{whose} has part_config and no partitioner. Set it, such as '2,1' for two shards of a matrix."
        shards = 0
        if node.partitioner:
            try:
                config = PartitionerConfig(partition_str=node.partitioner)
            except StrategyError as error:
                yield f"{whose}: {error}"
            else:
                shards = config.num_shards
                yield from self.partition(whose, config, variable) if variable else ()
                if parts and len(parts) != shards:
                    yield (
                        f"{whose}: partitioner '{node.partitioner}' makes {shards} shards, and part_config has "
                        f"{len(parts)}. Give one for each shard, or none."
                    )
        for index, part in enumerate(parts):
            yield from self.part(f"{whose}, shard {index}", part, variable.part_name(index) if variable else "")
        # The node's own synchronizer is that of the variable, or of the shards whose part has no synchronizer.
        if not parts or any(part.synchronizer is None for part in parts):
            yield from self.synchronizer(whose, node, 1 if parts else max(shards, 1))

    def partition(self, whose: str, config: PartitionerConfig, variable: Variable) -> Iterator[str]:
        if len(config.partition_list) != len(variable.shape):
            yield (
                f"{whose}: partitioner '{config.partition_str}' does not fit {variable.type_text}. "
                f"Give one number for each of its axes, {len(variable.shape)} in all, or leave it empty."
            )
        elif min(config.sizes(variable.shape[config.axis])) < 1:
            yield (
                f"{whose}: partitioner '{config.partition_str}' cuts axis {config.axis} in {config.num_shards} shards, "
                f"and it has {variable.shape[config.axis]} entries. A shard holds at least one."
            )

    def part(self, whose: str, part: Node, expected: str) -> Iterator[str]:
        if part.var_name and expected and variable_name(part.var_name) != expected:
            yield f"{whose} is named '{part.var_name}' in part_config. Name it '{expected}', or leave the name out."
        if part.partitioner or part.part_config:
            yield f"{whose} is split again in part_config. A variable is split once: give it more shards instead."
        if part.synchronizer is not None:
            yield from self.synchronizer(whose, part, 1, is_shard=True)

    def synchronizer(self, whose: str, node: Node, shards: int, is_shard: bool = False) -> Iterator[str]:
        said = node.synchronizer
        if node.contradiction:
            yield f"{whose} {node.contradiction}"
        if said is None:
            of = "synchronizer for the shards whose part_config has none" if node.part_config else "synchronizer"
            yield f"{whose} has no {of}. Set PSSynchronizer or AllReduceSynchronizer."
        elif isinstance(said, PSPlan):
            yield from self.ps(whose, said, shards, is_shard or bool(node.partitioner))
        else:
            yield from self.all_reduce(whose, said)

    def ps(self, whose: str, ps: PSPlan, shards: int, is_split: bool) -> Iterator[str]:
        places = ps.destinations
        if not places:
            yield f"{whose} has no reduction destination. Name a CPU device of {self.source}: {', '.join(self.cpus)}."
        if len(places) > shards:
            yield (
                f"{whose} names {len(places)} reduction destinations ({', '.join(places)}) for "
                f"{amount(shards, 'shard')}. Keep {shards}, or split the variable further with partitioner."
            )
        if ps.gathered and (not is_split or ps.local_replication or ps.staleness or not ps.sync):
            yield (
                f"{whose} is gathered, which is for the shards of a variable whose replicas keep in step and have no "
                "copies. Split it with partitioner, set sync=True, and leave staleness and local_replication out."
            )
        if ps.again_within < 0 or (ps.again_within and not ps.gathered):
            yield f"{whose} has again_within={ps.again_within}: it is 0 or more, and 0 unless gathered is set."
        if ps.wire_dtype and (ps.wire_dtype not in WIRE_DTYPES or not ps.gathered):
            known = " or ".join(WIRE_DTYPES)
            yield f"{whose} has wire_dtype={ps.wire_dtype}: it is {known}, and left out unless gathered is set."
        if ps.factor_rows < 0 or (ps.factor_rows and (not is_split or ps.staleness or not ps.sync)):
            yield (
                f"{whose} has factor_rows={ps.factor_rows}: it is 0 or more, and 0 unless the variable is split and "
                "replicas keep in step."
            )
        for name in dict.fromkeys(places):
            yield from self.destination(f"{whose}: reduction destination '{name}'", name)
        try:
            PSOptions(ps.local_replication, ps.sync, ps.staleness)
        except StrategyError as error:
            yield f"{whose}: {error}"

    @property
    def cpus(self) -> list[str]:
        return [name for name, device in self.devices.items() if device.kind == "CPU"]

    def destination(self, whose: str, name: str) -> Iterator[str]:
        unusable = list(self.device(whose, name))
        yield from unusable
        if not unusable and DeviceSpec.parse(name).kind != "CPU" and name not in self.replicas:
            known = ", ".join(dict.fromkeys([*self.cpus, *self.replicas]))
            yield f"{whose} is neither a CPU device nor a replica's, and reductions run on those. Known: {known}."

    def all_reduce(self, whose: str, reduce: AllReducePlan) -> Iterator[str]:
        if reduce.group is not None and reduce.group < 0:
            yield f"{whose}: group is {reduce.group}. It is a number, 0 or more."
        try:
            AllReduceOptions(
                reduce.chunk_size or 1, reduce.spec, reduce.compressor, bucket_bytes=reduce.bucket_bytes,
                factor_rows=reduce.factor_rows, wire_dtype=reduce.wire_dtype,
                power_sgd_rank=reduce.power_sgd_rank or POWER_SGD_RANK,
            )
        except StrategyError as error:
            yield f"{whose}: {error}"
