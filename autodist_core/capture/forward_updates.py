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

from collections.abc import Collection, Sequence
from dataclasses import replace

from autodist_core.capture.refuse.writes import written_by_compute
from autodist_core.capture.traced import Traced
from autodist_core.step.editor import Editor
from autodist_core.step.graph_item import Gradient, GraphItem
from autodist_core.step.index import StepIndex
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
    trained = {gradient.variable for gradient in traced.gradients}
    if trained.isdisjoint(written_by_compute(traced, graph)):
        return tuple(gradients)
    step = _index(traced, graph)
    wanted = _with_what_they_read(step, step.writes_of(trained))
    shared = {name for name, node in step.nodes.items() if node.op in _SHARED}
    groups = _groups(step, wanted, shared)
    if not wanted.isdisjoint(_own(traced, step, wanted)) or any(_is_seen_within(step, group) for group in groups):
        return tuple(gradients)
    inside = step.cone(wanted)
    others = step.cone((step.nodes.keys() - inside) | {output.op.name for output in traced.outputs})
    alone = wanted | (inside - others - shared)
    for index, group in enumerate(groups):
        for name in alone & step.cone(group):
            graph.mark_update(name, -1 - index)
    return _numbered(step, graph, gradients)


def _index(traced: Traced, graph: Editor) -> StepIndex:
    handles = {variable: name for name, variable in traced.handles.items()}
    variables = [each.variable for each in traced.sources]
    content = graph.graph_def(captured=True).SerializeToString()
    return StepIndex(GraphItem(
        tuple(replace(each, handle=handles.get(each.name, "")) for each in variables), graph_bytes=content
    ))  # fmt: skip


def _with_what_they_read(step: StepIndex, writes: set[str]) -> set[str]:
    """These writes, and all writes of compute to variables that they read or write."""
    while True:
        touched = {touch.variable for name in step.cone(writes) for touch in step.touches.get(name, ())}
        more = writes | step.writes_of(touched)
        if more == writes:
            return writes
        writes = more


def _groups(step: StepIndex, writes: Collection[str], shared: set[str]) -> list[set[str]]:
    """The writes in groups that have operations in common."""
    groups: list[set[str]] = []
    for name in writes:
        nodes = step.cone([name]) - shared
        joined = [group for group in groups if not nodes.isdisjoint(step.cone(group))]
        groups = [group for group in groups if group not in joined] + [set().union({name}, *joined)]
    return groups


def _own(traced: Traced, step: StepIndex, writes: Collection[str]) -> set[str]:
    """The nodes whose values a replica may have for itself: of the batch, of random draws, of what it writes."""
    placeholders = (*traced.inputs, traced.examples, traced.total, traced.replica)
    written = {
        touch.variable for name in step.writers if name not in writes and not step.is_update(name)
        for touch in step.touches[name] if touch.writes
    }
    # Replicas have seeds of their own, and of a sum only the first replica has it between steps.
    written |= {each.name for each in step.item.variables if each.kind == "seed" or each.aggregation == "sum"}
    return step.behind([
        *(tensor.op.name for tensor in placeholders if tensor is not None), *step.update_of, *step.draws,
        *(name for name, node in step.nodes.items() if "PyFunc" in node.op),
        *(name for name, touched in step.touches.items() if any(touch.variable in written for touch in touched)),
    ])  # fmt: skip


def _is_seen_within(step: StepIndex, group: set[str]) -> bool:
    """Whether another node touches the group's variables after its first write and before its last one."""
    places = sorted(step.position[name] for name in group)
    variables = {touch.variable for name in group for touch in step.touches[name] if touch.writes}
    inside = step.cone(group)
    return any(
        places[0] < step.position[name] < places[-1] and any(touch.variable in variables for touch in touched)
        for name, touched in step.touches.items() if name not in inside
    )


def _numbered(step: StepIndex, graph: Editor, gradients: Sequence[Gradient]) -> tuple[Gradient, ...]:
    """Give the updates numbers in the order of their last writes."""
    marked = {node.name: node.attr[UPDATE].i for node in graph if UPDATE in node.attr}

    def last_write(number: int) -> int:
        return max((step.position[name] for name in step.writers if marked.get(name) == number), default=step.end)

    numbers = dict.fromkeys((*marked.values(), *(gradient.occurrence for gradient in gradients)))
    number_of = {old: new for new, old in enumerate(sorted(numbers, key=last_write))}
    for name, number in marked.items():
        graph.mark_update(name, number_of[number])
    return tuple(replace(gradient, occurrence=number_of[gradient.occurrence]) for gradient in gradients)
