"""Let the owners write the trained variables that the forward pass of a step writes alike on all replicas.

In: a traced step, its graph with the nodes of updates marked, and its gradients. Out: the gradients, and more marks on
the graph. `keras.layers.SpectralNormalization` divides a kernel by its norm before each call::

    norm   = If(kernel, vector)                    update 0, without gradients
    kernel = AssignVariableOp(norm)                update 0
    y      = MatMul(x, ReadVariableOp(kernel))     compute
    kernel = ResourceApplyAdam(kernel, gradient)   update 1, which was update 0

What is written needs variables and constants only, and nothing of the batch. So it is the same on all replicas, and an
update that runs on each owner writes it. What compute reads afterwards is the new value, as behind any update.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from autodist_core.capture.traced import Traced
from autodist_core.step import naming
from autodist_core.step.draws import Draws
from autodist_core.step.editor import Editor
from autodist_core.step.graph_item import Gradient
from autodist_core.step.index import Touch, accesses
from autodist_core.step.naming import UPDATE

_SHARED = {"Const", "Placeholder"}
"""Operations that several updates, and compute, may each have a copy of."""


def with_forward_updates(traced: Traced, graph: Editor, gradients: Sequence[Gradient]) -> tuple[Gradient, ...]:
    """Mark the forward pass's writes of trained variables as updates, if they are alike. The module has an example.

    >>> from autodist_core.capture.example import example_traced
    >>> traced = example_traced()
    >>> with_forward_updates(traced, Editor.of(traced.graph.as_graph_def()), ())
    ()
    """
    step = _Step.of(traced, graph)
    wanted = step.writes_of({gradient.variable for gradient in traced.gradients})
    if not wanted:
        return tuple(gradients)
    wanted = step.with_what_they_read(wanted)
    groups = step.groups(wanted)
    if not wanted.isdisjoint(step.own(traced, graph, wanted)) or any(step.is_seen_within(group) for group in groups):
        return tuple(gradients)
    alone = step.alone(wanted, {output.op.name for output in traced.outputs})
    for index, group in enumerate(groups):
        for name in alone & step.cone(group):
            graph.mark_update(name, -1 - index)
    return _numbered(step, graph, gradients)


@dataclass(frozen=True)
class _Step:
    """The nodes of a graph, in the order of their creation."""

    position: Mapping[str, int]
    sources: Mapping[str, Sequence[str]]
    touches: Mapping[str, Sequence[Touch]]
    updates: Collection[str]
    shared: Collection[str]

    @staticmethod
    def of(traced: Traced, graph: Editor) -> _Step:
        return _Step(
            {node.name: index for index, node in enumerate(graph)},
            {
                node.name: [*map(naming.node_of, naming.data_inputs(node)), *naming.branch_of(node)] for node in graph
            },
            {node.name: found for node in graph if (found := accesses(node, traced.handles.get))},
            {node.name for node in graph if UPDATE in node.attr},
            {node.name for node in graph if node.op in _SHARED},
        )

    def writes_of(self, variables: Collection[str]) -> set[str]:
        """The nodes of compute that write one of these variables."""
        return {
            name for name, touched in self.touches.items() if name not in self.updates
            and any(touch.writes and touch.variable in variables for touch in touched)
        }

    def cone(self, roots: Collection[str]) -> set[str]:
        """The roots, and all nodes on which they depend."""
        seen: set[str] = set()
        waiting = list(roots)
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting.extend(self.sources[name])
        return seen

    def with_what_they_read(self, writes: set[str]) -> set[str]:
        """These writes, and all writes of compute to variables that they read or write."""
        while True:
            touched = {touch.variable for name in self.cone(writes) for touch in self.touches.get(name, ())}
            more = writes | self.writes_of(touched)
            if more == writes:
                return writes
            writes = more

    def groups(self, writes: Collection[str]) -> list[set[str]]:
        """The writes in groups that have operations in common."""
        groups: list[set[str]] = []
        for name in writes:
            nodes = self.cone([name]) - set(self.shared)
            joined = [group for group in groups if not nodes.isdisjoint(self.cone(group))]
            groups = [group for group in groups if group not in joined] + [set().union({name}, *joined)]
        return groups

    def own(self, traced: Traced, graph: Editor, writes: Collection[str]) -> set[str]:
        """The nodes whose values a replica may have for itself: of the batch, of random draws, of what it writes."""
        draws = Draws(graph.library.function)
        inputs = {tensor.op.name for tensor in (*traced.inputs, traced.examples, traced.total)}
        inputs |= {traced.replica.op.name} if traced.replica is not None else set()
        written = {
            touch.variable for name, touched in self.touches.items() for touch in touched
            if touch.writes and name not in self.updates and name not in writes
        }
        # Replicas have seeds of their own, and of a sum only the first replica has it between steps.
        written |= {
            each.variable.name for each in traced.sources
            if each.variable.kind == "seed" or each.variable.aggregation == "sum"
        }
        own = inputs | set(self.updates) | {node.name for node in graph if draws.of(node) or "PyFunc" in node.op}
        own |= {name for name, found in self.touches.items() if any(touch.variable in written for touch in found)}
        for name in self.position:
            if any(source in own for source in self.sources[name]):
                own.add(name)
        return own

    def is_seen_within(self, group: set[str]) -> bool:
        """Whether another node touches the group's variables after its first write and before its last one."""
        places = sorted(self.position[name] for name in group)
        variables = {touch.variable for name in group for touch in self.touches[name] if touch.writes}
        inside = self.cone(group)
        return any(
            places[0] < self.position[name] < places[-1] and any(touch.variable in variables for touch in touched)
            for name, touched in self.touches.items() if name not in inside
        )

    def alone(self, writes: set[str], outputs: set[str]) -> set[str]:
        """The writes, and the nodes that these alone need."""
        inside = self.cone(writes)
        others = self.cone((self.position.keys() - inside) | outputs)
        return writes | (inside - others - set(self.shared))


def _numbered(step: _Step, graph: Editor, gradients: Sequence[Gradient]) -> tuple[Gradient, ...]:
    """Give the updates numbers in the order of their last writes."""
    marked = {node.name: node.attr[UPDATE].i for node in graph if UPDATE in node.attr}
    last: dict[int, int] = {}
    for name in marked.keys() & step.touches.keys():
        if any(touch.writes for touch in step.touches[name]):
            last[marked[name]] = max(last.get(marked[name], 0), step.position[name])
    for number in (*marked.values(), *(gradient.occurrence for gradient in gradients)):
        last.setdefault(number, len(step.position))
    number_of = {old: new for new, old in enumerate(sorted(last, key=last.__getitem__))}
    for name, number in marked.items():
        graph.mark_update(name, number_of[number])
    return tuple(replace(gradient, occurrence=number_of[gradient.occurrence]) for gradient in gradients)
