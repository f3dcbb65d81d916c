"""Arrangement: how one step carries a strategy out. The plan prints these decisions, and `place` follows them.

In: a captured step, a compiled strategy and the setting `share_memory`. Out: an `Arrangement`. For a strategy that
splits two variables over servers, and an update that needs one of them whole::

    memories             (0, 1)                         each replica computes on copies of its own
    partitioner          plans of `table`               this variable is split
    partitioner.whole    {"kernel": "Sum (norm/Sum)"}   this one is not: a norm needs all of it
    is_loose             False                          replicas wait for each other

A step that is not captured yet has no gradients, and its variables are not split.
"""

from dataclasses import dataclass, replace

from autodist_core.kernel.analysis.ownership import slots
from autodist_core.kernel.partitioner import VariablePartitioner
from autodist_core.resource_spec import DeviceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex
from autodist_core.strategy.compiled import CompiledStrategy, VariablePlan, allows_lead
from autodist_core.strategy.synchronizers import AllReducePlan, PSPlan


@dataclass(frozen=True)
class Arrangement:
    """A strategy as a step carries it out.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core import ResourceSpec, StrategyCompiler
    >>> from autodist_core.strategy import PartitionedPS
    >>> item, spec = example_step(), ResourceSpec.local(cpus=2)
    >>> strategy = StrategyCompiler(item, spec).compile(PartitionedPS().build(item, spec))
    >>> arrange(item, strategy).shares_memory, arrange(item, strategy, share_memory=False).shares_memory
    (True, False)
    """

    strategy: CompiledStrategy
    """The strategy; variables that cannot be split are whole in it, and it has the reason why replicas stay in step."""
    memories: tuple[int, ...]
    """For each replica, the index of the replica on whose copies it computes."""
    partitioner: VariablePartitioner
    """The partitioner of the variables that are split."""

    @property
    def shares_memory(self) -> bool:
        """Whether all replicas compute on one copy of the weights."""
        return len(self.memories) > 1 and set(self.memories) == {0}

    @property
    def compiled_together(self) -> bool:
        """Whether XLA compiles compute and update in one: they are in one process, and there is one memory."""
        alone = self.shares_memory or len(self.memories) == 1
        return alone and len(self.strategy.machines) == 1 and not self.is_loose

    @property
    def is_loose(self) -> bool:
        """Whether replicas do not wait for each other."""
        return not self.strategy.in_step_reason and self.strategy.allowed_lead is not None


def arrange(item: GraphItem, strategy: CompiledStrategy, share_memory: bool | None = None) -> Arrangement:
    """Decide how a step carries a strategy out; `share_memory=None` leaves it to the strategy.

    >>> from autodist_core import ResourceSpec, StrategyCompiler
    >>> from autodist_core.step.graph_item import Variable
    >>> from autodist_core.strategy import PS
    >>> item, spec = GraphItem((Variable("w", (3, 2), "float32"),)), ResourceSpec.local(cpus=2)
    >>> strategy = StrategyCompiler(item, spec).compile(PS().build(item, spec))
    >>> [arrange(item, strategy, asked).shares_memory for asked in (None, True, False)]
    [True, True, False]
    """
    found = memories(strategy, share_memory)
    gathered = any(plan.gathered for plan in strategy.variables)
    if not (item.gradients or gathered) or (len(found) > 1 and set(found) == {0}):
        # With one memory, a variable has one copy and one update: no variable is split.
        return Arrangement(strategy, found, VariablePartitioner())
    step, shared = StepIndex.of(item), len(set(found)) < len(found)
    if shared and step.written_by_compute & (step.trained.keys() | slots(step).keys() | optimizer_state(step)):
        # Each replica writes values of its own to these variables: they cannot be one copy.
        found = tuple(range(len(found)))
    partitioner = VariablePartitioner.of(item, _on_servers(strategy))
    fitted = strategy.for_step(partitioner.whole, partitioner.mirrored)
    return Arrangement(replace(fitted, in_step_reason=_in_step_reason(item, fitted)), found, partitioner)


def optimizer_state(step: StepIndex) -> frozenset[str]:
    """Return the shared state of the optimizer. Every owner has a copy of it.

    >>> from autodist_core.capture.example import example_step
    >>> sorted(optimizer_state(StepIndex(example_step())))
    ['iterations']
    """
    family = step.trained.keys() | slots(step).keys()
    return frozenset(
        variable.name for variable in step.item.variables
        if variable.name not in family and (variable.name in step.written_by_update or variable.kind == "optimizer")
    )


def _on_servers(strategy: CompiledStrategy) -> list[VariablePlan]:
    """Return the plans with a shard on a server. Shards that are all-reduced travel apart, and are updated as one."""
    return [plan for plan in strategy.variables if any(isinstance(s.synchronizer, PSPlan) for s in plan.shards)]


def _in_step_reason(item: GraphItem, strategy: CompiledStrategy) -> str:
    """Return why replicas of a loose strategy must stay in step in this step; empty if they need not."""
    if strategy.allowed_lead is None:
        return ""
    if len({gradient.occurrence for gradient in item.gradients}) > 1:
        return "the step updates several times, each time on what the last one gave"
    if StepIndex.of(item).forward_updates:
        return "the forward pass writes trained variables, as SpectralNormalization does"
    if item.cross_replica_sums:
        return "the step adds something up over all replicas (masked or weighted losses, synchronized statistics)"
    if item.cross_replica_gathers:
        return "the step computes with the rows of the whole batch on every replica (whole_batch)"
    if item.cross_replica_maxima:
        return "the step takes the largest of something over all replicas (ragged tensors made dense, float8 layers)"
    return ""


def memories(strategy: CompiledStrategy, asked: bool | None) -> tuple[int, ...]:
    """Return for each replica the index of the first replica with the same memory. Two machines with two devices each::

        (0, 0, 2, 2)    the replicas of each machine share memory
        (0, 1, 2, 3)    each replica has copies of its own

    CPU devices of one process can share memory. No gradient travels between such replicas, so none is compressed, and
    no replica can be ahead of another. So a strategy with a compressor or with staleness gets copies for each replica.

    `asked` is the setting `share_memory`. False gives each replica copies of its own. Otherwise the strategy decides.

    >>> from autodist_core import GraphItem, ResourceSpec, StrategyCompiler
    >>> from autodist_core.step.graph_item import Variable
    >>> from autodist_core.strategy import PS
    >>> item, spec = GraphItem((Variable("w", (3, 2), "float32"),)), ResourceSpec.local(cpus=2)
    >>> strategy = StrategyCompiler(item, spec).compile(PS().build(item, spec))
    >>> memories(strategy, None), memories(strategy, False)
    ((0, 0), (0, 1))
    """
    alone = tuple(range(len(strategy.replicas)))
    if asked is False or any(
        each.compressor != "NoneCompressor" if isinstance(each, AllReducePlan) else allows_lead(each)
        for each in strategy.synchronizers
    ):
        return alone
    devices = [DeviceSpec.parse(name) for name in strategy.replicas]
    places = [device.address if device.kind == "CPU" else device for device in devices]
    return tuple(places.index(place) for place in places)
