"""Compile: let XLA compile each replica's compute, as far as it can.

In: the finished graph, and what XLA can compile of the captured step. Out: in place of a replica's operations, calls of
functions that XLA compiles when they first run. For a model without operations that XLA cannot compile::

    replica0/MatMul, replica0/BiasAdd, ..., replica0/gradient    ->    replica0/compiled/0

A piece is a set of operations between which no other operation stands. A lookup of words in the middle of compute
leaves a piece before it and one behind it. Over several machines the backward pass is several pieces, so that the
gradients of one piece travel while the next piece runs. Variables are read and written outside. Equal functions of
several replicas are one function.

Replicas on CPU devices of one process that share memory are compiled together, with the sums and the update, and so is
a replica that is alone: without strings and the like, the whole step is one piece. XLA writes the variables of a
function when all of it has run.
"""

from collections.abc import Collection, Mapping, Set
from types import MappingProxyType

from autodist_core.kernel.analysis.compilable import (
    SMALLEST,
    Compilable,
    compilable,
    compilable_pieces,
    exchanged_lists,
    has_kernel,
)  # fmt: skip
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.random_streams import stream_of_replica
from autodist_core.step import naming
from autodist_core.step.editor import Editor
from autodist_core.step.enclosing import enclose
from autodist_core.step.graph_check import in_order
from autodist_core.step.index import StepIndex, analysis
from autodist_core.strategy.synchronizers import BUCKET_BYTES


class Compile(Kernel):
    """Puts each replica's pieces of compute into functions, if the captured step asks for it.

    >>> from dataclasses import replace
    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.kernel.pipeline import build
    >>> from autodist_core.strategy import PS
    >>> graph = build(replace(example_step(), jit_compile=True), example_placement(PS()))
    >>> [counts for counts in graph.changes[-1].ops if counts[0] == "PartitionedCall"]
    [('PartitionedCall', 0, 2)]
    """

    needs = ("outputs", "steps")
    reads = ("compute",)
    provides = ("outputs",)

    def apply(self, draft: Draft) -> None:
        """Replace the pieces by calls."""
        if not draft.step.item.jit_compile:
            return
        known = compilable(draft.step)
        if draft.placement.compiled_together:
            _compile_together(draft, known)
        else:
            _compile_each(draft, known)


def _compile_together(draft: Draft, known: Compilable) -> None:
    """Compile what all replicas do and the update, as far as XLA can, on the device of the first replica."""
    editor, functions, replicas = draft.editor, draft.editor.functions, draft.placement.replicas
    # Names tell more than marks of copies would: a node may stand in place of a copy, as the rows of one large product.
    prefixes = ["result", *(f"update/{owner.name}" for owner in draft.placement.owners)]
    prefixes += [f"{home}{replica.prefix}" for home in ("", "at_once/", "result/") for replica in replicas]

    def copies(names: Collection[str]) -> set[str]:
        return {f"{prefix}/{name}" for prefix in prefixes for name in names}

    refused = copies(known.refused).union(_conditional(editor), draft.steps)
    devices = {each.device for each in replicas}
    inside = {
        node.name for node in editor
        if node.device in devices and node.name not in refused and node.op != "Const"
        and (node.op == "NoOp" or has_kernel(node, functions, variables=True))
    }
    _enclose(draft, inside, copies(draft.step.draws.keys()), copies(known.of_shapes) & inside)


def _conditional(editor: Editor) -> set[str]:
    """Return the nodes that have no value in a step in which their branch is not taken. A call that reads one has none.
    """
    found: set[str] = set()
    sources = editor.sources()
    for name in in_order(sources):
        op = editor[name].op
        if op == "Switch" or (op != "Merge" and not found.isdisjoint(sources[name])):
            found.add(name)
    return found


def _compile_each(draft: Draft, known: Compilable) -> None:
    """Compile each replica's compute."""
    found = known.names & draft.compute
    stages = send_stages(draft.step) if len(draft.placement.hosts) > 1 else {}
    for replica in draft.active_replicas:
        stage_of = {replica.copy_of(name): stage for name, stage in stages.items()}
        stage_of |= {stream_of_replica(name): stage for name, stage in stage_of.items()}
        own = [replica.copy_of(name) for name in found]
        own += [stream for name in own if (stream := stream_of_replica(name)) in draft.editor]
        inside = {name for name in own if draft.editor[name].device == replica.device}
        # XLA draws other numbers, so a piece with random draws is compiled, whatever its size.
        draws = set(map(replica.copy_of, draft.step.draws))
        repeated = {replica.copy_of(name) for name in known.of_shapes & found}
        _enclose(draft, inside, draws, repeated, f"{replica.prefix}/", stage_of)


def _enclose(
    draft: Draft, inside: Set[str], draws: Set[str], repeated: Set[str], prefix: str = "",
    stages: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Replace each piece of some nodes by a call, if it is large enough or draws random numbers."""
    editor = draft.editor
    constants = {node.name for node in editor if node.op == "Const"}
    calls = {
        f"{prefix}compiled/{number}": names
        for number, names in enumerate(compilable_pieces(editor.sources(), inside, constants, stages))
        if len(names) >= SMALLEST or not draws.isdisjoint(names)
    }
    moved = enclose(editor, calls, draft.outputs, repeated, prefix)
    draft.outputs[:] = [moved.get(naming.canonical(name), name) for name in draft.outputs]


@analysis
def send_stages(step: StepIndex) -> dict[str, int]:
    """Return the stage of each node of compute: the gradients of one stage travel while the next stage runs.

    For two large dense layers, whose backward pass computes the gradient of the second layer first::

        forward pass, loss, gradient of the second layer      stage 0
        gradient of the first layer, and what only logs       stage 1

    The gradients of a stage have about as many bytes together as one collective takes. A node is in the first stage
    that needs its value, so no node needs the value of a later stage. Nodes that exchange lists are in the same stage.

    >>> from autodist_core.capture.example import example_step
    >>> set(send_stages(StepIndex(example_step())).values())
    {0}
    """
    compute = [node.name for node in step.graph.node if not step.is_update(node.name)]
    ends = _ends(step)
    last = max(ends.values(), default=0)
    found = {name: ends.get(name, last) for name in compute}
    lists = [edge for edge in exchanged_lists(step) if found.keys() >= {*edge}]
    _settle(step, found)
    while later := [(writer, reader) for writer, reader in lists if found[reader] > found[writer]]:
        for writer, reader in later:
            found[reader] = min(found[reader], found[writer])
        _settle(step, found)
    return found


def _ends(step: StepIndex) -> dict[str, int]:
    """Return the nodes that compute gradients, each with the number of its stage."""
    sizes: dict[str, int] = {}
    for gradient in step.item.gradients:
        for name in gradient.parts:
            node = naming.node_of(step.nodes[naming.node_of(name)].input[0])
            # How many rows a sparse gradient has is not known, and they are few.
            sizes[node] = 0 if gradient.indices else step.variables[gradient.variable].byte_size
    found: dict[str, int] = {}
    stage = filled = 0
    for node in sorted(sizes, key=lambda name: step.position[name]):
        if filled and filled + sizes[node] > BUCKET_BYTES:
            stage, filled = stage + 1, 0
        filled += sizes[node]
        found[node] = stage
    return found


def _settle(step: StepIndex, found: dict[str, int]) -> None:
    """Lower the stage of each node to the first stage that needs it."""
    for name in sorted(found, key=lambda name: step.position[name], reverse=True):
        for source in {naming.node_of(source) for source in step.nodes[name].input} & found.keys():
            found[source] = min(found[source], found[name])
