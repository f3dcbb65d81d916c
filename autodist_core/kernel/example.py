"""The example step on two replicas, for the examples of docstrings.

In: a strategy builder. Out: the placement of the step that `autodist_core.capture.example` captures, and what a kernel
does to its graph:

>>> from autodist_core.strategy import PS
>>> example_placement(PS()).owner_of["kernel"]
'server_localhost_CPU_0'
>>> example_change(PS(), "PSSynchronizer", "AddN")
'AddN: 0 -> 1'
"""

from autodist_core.capture.example import example_step
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import run
from autodist_core.kernel.pipeline import PIPELINE, build
from autodist_core.kernel.placement.devices import Tasks
from autodist_core.kernel.placement.placement import Placement
from autodist_core.kernel.placement.placing import place
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy import StrategyBuilder
from autodist_core.strategy.compiler import StrategyCompiler


def example_placement(builder: StrategyBuilder, item: GraphItem | None = None, tasks: Tasks | None = None) -> Placement:
    """Place the example step, or another step, on two replicas that share no memory.

    >>> from autodist_core.strategy import AllReduce
    >>> [owner.name for owner in example_placement(AllReduce()).owners]
    ['replica0', 'replica1']
    """
    item, spec = item or example_step(), ResourceSpec.local(cpus=2)
    strategy = StrategyCompiler(item, spec).compile(builder.build(item, spec))
    return place(item, strategy, share_memory=False, tasks=tasks)


def example_change(builder: StrategyBuilder, kernel: str, *ops: str) -> str:
    """Return how many operations of these types the graph has before a kernel of the pipeline runs, and after it.

    >>> from autodist_core.strategy import AllReduce
    >>> example_change(AllReduce(), "AllReduceSynchronizer", "CollectiveReduceV2")
    'CollectiveReduceV2: 0 -> 2'
    """
    graph = build(example_step(), example_placement(builder))
    (change,) = (change for change in graph.changes if change.kernel == kernel)
    return ", ".join(f"{op}: {before} -> {after}" for op, before, after in change.ops if op in ops)


def example_draft(builder: StrategyBuilder, before: str = "Replicator", item: GraphItem | None = None) -> Draft:
    """Return the draft of the example step, or of another step, as this kernel of the pipeline finds it.

    >>> from autodist_core.strategy import PS
    >>> example_draft(PS(), before="PSSynchronizer").local["kernel", 0, 1].values
    'weighted/replica1/0/kernel'
    """
    item = item or example_step()
    draft = Draft.of(item, example_placement(builder, item))
    run(draft, PIPELINE[: [kernel.name for kernel in PIPELINE].index(before)])
    return draft
