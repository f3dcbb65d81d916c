"""The pipeline: all kernels in order, from a captured step and a placement to the graph of all replicas.

In: a captured step, a placement, and which replicas have examples. Out: a `DistributedGraph`, with a line for what each
kernel did. For a dense layer, a parameter server and two replicas::

    Replicator: AddV2: 0 -> 4, ..., MatMul: 0 -> 4, ..., ReadVariableOp: 0 -> 4, ...
    AllReduceSynchronizer: no change
    PSSynchronizer: AddN: 0 -> 2, AssignVariableOp: 0 -> 4, ReadVariableOp: 4 -> 6, VarHandleOp: 4 -> 6
    Barriers: NoOp: 0 -> 3
    Update: AssignSubVariableOp: 0 -> 2, Const: 20 -> 22, Mul: 8 -> 10
    StateCombiner: no change
    Outputs: AddV2: 4 -> 5, Const: 22 -> 24, ExpandDims: 0 -> 1, Identity: 4 -> 5, Mul: 10 -> 11, Pack: 0 -> 2, ...
    Order: NoOp: 3 -> 4
    GradientsInTurn: no change
    NumbersTogether: no change
    LookupsTogether: no change
    WeightsTogether: no change
    Compile: no change

If many machines do the same, a few are built, and `kernel/units/` makes the graph of all from theirs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autodist_core.kernel.added_variables import AddedVariable
from autodist_core.kernel.analysis.factored import Factors, bytes_of_example, factors
from autodist_core.kernel.draft import Draft, Slicing
from autodist_core.kernel.kernel import Change, Kernel, run
from autodist_core.kernel.passes.barriers import Barriers
from autodist_core.kernel.passes.compile import Compile
from autodist_core.kernel.passes.gradients_in_turn import GradientsInTurn
from autodist_core.kernel.passes.lookups_together import LookupsTogether
from autodist_core.kernel.passes.numbers_together import NumbersTogether
from autodist_core.kernel.passes.order import Order
from autodist_core.kernel.passes.outputs import Outputs
from autodist_core.kernel.passes.replicator import Replicator
from autodist_core.kernel.passes.state_combiner import StateCombiner
from autodist_core.kernel.passes.synchronizer import AllReduceSynchronizer, PSSynchronizer
from autodist_core.kernel.passes.update import Update
from autodist_core.kernel.passes.weights_together import WeightsTogether
from autodist_core.kernel.placement.placement import Placement
from autodist_core.kernel.random_streams import follows_from_number
from autodist_core.kernel.units import STANDING, Kind, Kinds, UnlikeError, found_kinds, repeat, standing
from autodist_core.log import log
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex

PIPELINE: tuple[Kernel, ...] = (
    Replicator(), AllReduceSynchronizer(), PSSynchronizer(), Barriers(), Update(), StateCombiner(), Outputs(),
    Order(), GradientsInTurn(), NumbersTogether(), LookupsTogether(), WeightsTogether(), Compile(),
)


@dataclass(frozen=True)
class DistributedGraph:
    """One step for all replicas: the tensors to feed and to fetch, and the nodes to run.

    `inputs` are the indices of the captured inputs that the graph reads. `feeds` names their placeholders for each
    replica. `counts` names the placeholders for each replica's number of examples and for the number of all. A graph
    for batches of one size has no `counts`.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS
    >>> graph = build(example_step(), example_placement(PS()))
    >>> graph.feeds, graph.counts
    ((('replica0/x',), ('replica1/x',)), ('feed/replica0/examples', 'feed/replica1/examples', 'feed/total'))
    >>> print(graph.changes[2])
    PSSynchronizer: AddN: 0 -> 1, AssignVariableOp: 0 -> 2, ReadVariableOp: 2 -> 3, VarHandleOp: 4 -> 5
    """

    graph_def: Any
    feeds: tuple[tuple[str, ...], ...]
    inputs: tuple[int, ...]
    counts: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[str, ...]
    initializers: tuple[str, ...]
    changes: tuple[Change, ...]
    added: tuple[AddedVariable, ...] = ()
    """The variables that kernels added. They belong to the state of the training, too."""
    buckets: int = 0
    """How many sums of dense gradients there are, by collectives or by sends."""
    collectives: int = 0
    """How many collectives each replica takes part in."""
    factored: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For each variable of which factors travel between machines, the bytes of these for one example of a batch."""

    def __str__(self) -> str:
        return "\n".join(str(change) for change in self.changes)


def build(
    item: GraphItem, placement: Placement, active: int | Sequence[int] | None = None,
    kernels: Sequence[Kernel] = PIPELINE, sizes: Sequence[int] = (), examples: int = 0,
) -> DistributedGraph:
    """Build the graph of one step in which the first `active` replicas, or those with these indices, have examples.

    `sizes` is the number of examples of each active replica. With it, the graph takes batches of these sizes only, and
    TensorFlow computes in advance the values that depend on shapes alone. `examples` is the size of the batch, and
    decides of which gradients the factors travel; 0 stands for an unknown size.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS
    >>> build(example_step(), example_placement(PS())).outputs
    ('joined/loss/output0/done', 'update/server_localhost_CPU_0/norm/Squeeze')
    """
    placement = placement.reading(StepIndex.of(item))
    everyone = active is None or active == len(placement.replicas)
    ways = list(_ways(item, placement, sizes)) if everyone and kernels is PIPELINE else []
    for kinds in ways:
        try:
            built = standing(placement, kinds.built)
            slicing = Slicing(built.replicas, kinds.examples, placement.replicas, tuple(sizes), examples)
            draft = Draft.of(placement.partitioner.apply(item), built, slicing)
            return _graph_of(draft, item, run(draft, kernels), (kinds.replicas, kinds.machines))
        except UnlikeError as error:
            what = "The graph of each replica is built" if kinds is ways[-1] else "More replicas are built"
            log.debug("%s: %s", what, error)
    indices = range(active) if isinstance(active, int) else active
    replicas = placement.replicas if indices is None else tuple(placement.replicas[index] for index in indices)
    slicing = Slicing(replicas, tuple(sizes), examples=examples)
    draft = Draft.of(placement.partitioner.apply(item), placement, slicing)
    return _graph_of(draft, item, run(draft, kernels))


def _ways(item: GraphItem, placement: Placement, sizes: Sequence[int]) -> Iterator[Kinds]:
    """Yield what may stand for all replicas: at first with one machine besides the first, then with more of each kind.

    One machine besides the first may show enough if constants follow from a replica's number. Those of replica 1, which
    is on the first machine if that has two, tell how.
    """
    step, hosts = StepIndex.of(item), [replica.host for replica in placement.replicas]
    known = not step.draws or (hosts[:1] == hosts[1:2] and follows_from_number(step))
    for built in (1, STANDING) if known and len(set(sizes)) < 2 else (STANDING,):
        kinds = found_kinds(placement, sizes, built)
        if kinds is not None:
            yield kinds


def _graph_of(
    draft: Draft, item: GraphItem, changes: Sequence[Change], kinds: Sequence[Sequence[Kind]] = ()
) -> DistributedGraph:
    """Return the graph of a finished draft. The units of the kinds are repeated, from the innermost kinds outwards."""
    if kinds:
        if draft.initializers:
            raise UnlikeError("a lookup table is on each machine.")
        before = draft.editor.histogram()
        for units in filter(None, kinds):
            repeat(draft, units)
        changes = [*changes, Change.between("Repeat", before, draft.editor.histogram())]
    replicas, _ = draft.slicing.of_all
    used = tuple(index for index, each in enumerate(item.inputs) if replicas[0].copy_of(each.name) in draft.editor)
    feeds = tuple(tuple(draft.fed(replica, item.inputs[index].name) for index in used) for replica in replicas)
    counts = () if draft.slicing.sizes else (*map(draft.examples, replicas), draft.total())
    return DistributedGraph(
        draft.editor.graph_def(), feeds, used, counts, tuple(draft.outputs), tuple(draft.steps),
        tuple(draft.initializers), tuple(changes), tuple(draft.added), draft.buckets, draft.collectives,
        bytes_of_example(draft.step, draft.products.travelling, draft.placement.partitioner.plans),
    )


def factor_limits(item: GraphItem, placement: Placement) -> tuple[int, ...]:
    """Return the sizes of a batch above which one more gradient travels by itself, and not as factors.

    Batches of which the same of these sizes are exceeded may have one graph.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import AllReduce
    >>> factor_limits(example_step(), example_placement(AllReduce()))
    ()
    """
    names = [replica.name for replica in placement.replicas]
    found = factors(StepIndex.of(placement.partitioner.apply(item)), placement.plans, names)
    return tuple(sorted(each.limit for each in found.values() if isinstance(each, Factors)))
