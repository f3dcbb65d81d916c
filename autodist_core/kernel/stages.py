"""The graphs through which a step goes on its way to all replicas, to be looked at: TensorBoard shows them.

In: a captured step and a placement. Out: a `GraphStage` for the captured step, for the step with its variables split,
and for the graph after each kernel that changes it. The kernels run once more for this; nothing else is changed::

    captured -> split -> Replicator -> PSSynchronizer -> Barriers -> Update -> Outputs -> Order-final

Loose replicas have a graph each for five purposes (`loose_graphs.py`). The stages are then the first replica's graphs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from tensorflow.core.framework.tensor_pb2 import TensorProto

from autodist_core.kernel import loose_graphs as loose
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Change, run
from autodist_core.kernel.pipeline import PIPELINE
from autodist_core.kernel.placement.placement import Placement
from autodist_core.step.editor import Editor
from autodist_core.step.graph_item import GraphItem

_LARGE_BYTES = 1024
"""From which size on the value of a constant is left out."""


@dataclass(frozen=True)
class GraphStage:
    """One graph, with the name of its stage and what was done since the stage before.

    >>> from tensorflow.core.framework.graph_pb2 import GraphDef
    >>> GraphStage("captured", GraphDef(), "one device").name
    'captured'
    """

    name: str
    graph_def: Any
    what: str


def graph_stages(item: GraphItem, placement: Placement) -> tuple[GraphStage, ...]:
    """Return the stages of a step, for batches of which every replica has examples.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS, PartitionedPS
    >>> [stage.name for stage in graph_stages(example_step(), example_placement(PS()))]
    ['captured', 'Replicator', 'PSSynchronizer', 'Barriers', 'Update', 'StateCombiner', 'Outputs', 'Order-final']
    >>> [stage.name for stage in graph_stages(example_step(), example_placement(PartitionedPS()))][:2]
    ['captured', 'split']
    >>> [stage.name for stage in graph_stages(example_step(), example_placement(PS(staleness=2)))]
    ['captured', 'follow', 'compute', 'update', 'discard', 'combine']
    """
    split = placement.partitioner.apply(item)
    found = [GraphStage("captured", _shown(item.graph_def), "the step as it was captured, on one device")]
    if split is not item:
        found.append(GraphStage("split", _shown(split.graph_def), "each shard of a split variable is a variable"))
    return (*found, *(_of_loose(item, placement) if placement.loose else _of_pipeline(split, placement)))


def _of_pipeline(split: GraphItem, placement: Placement) -> Iterator[GraphStage]:
    draft = Draft.of(split, placement)
    changes: list[tuple[Change, Any]] = []
    for kernel in PIPELINE:
        (change,) = run(draft, (kernel,))
        if change.ops:
            changes.append((change, _shown(draft.editor.graph_def())))
    for position, (change, graph) in enumerate(changes, start=1):
        name = f"{change.kernel}-final" if position == len(changes) else change.kernel
        yield GraphStage(name, graph, str(change).partition(": ")[2])


def _of_loose(item: GraphItem, placement: Placement) -> Iterator[GraphStage]:
    replicas = range(1 if placement.loose == inf else len(placement.replicas))
    for name, graph in (
        ("follow", loose.following(item, placement, 0)), ("compute", loose.computing(item, placement, 0)),
        ("update", loose.updating(item, placement, replicas)), ("discard", loose.discarding(item, placement, 0)),
        ("combine", loose.combining(item, placement)),
    ):
        yield GraphStage(name, _shown(graph.graph_def), "; ".join(map(str, graph.changes)))


def _shown(graph: Any) -> Any:
    """A copy of a graph without the values of large constants, which a picture does not show."""
    editor = Editor.of(graph)
    for name in [node.name for node in editor if node.op == "Const" and node.ByteSize() > _LARGE_BYTES]:
        value = editor[name].attr["value"].tensor
        empty = TensorProto(dtype=value.dtype, tensor_shape=value.tensor_shape)
        editor.change(name, value=empty)
    return editor.graph_def()
