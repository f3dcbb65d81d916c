"""Several captured steps as one, for deciding where their variables are placed.

In: the training steps of one session, such as those of a generator and of a discriminator. Out: one `GraphItem` with
all of their variables, gradients and nodes. It is not run: each step keeps a graph of its own.

>>> from autodist_core.step.values import Variable
>>> one, other = (GraphItem((Variable(name, (2,), "float32"),)) for name in ("generator", "discriminator"))
>>> [variable.name for variable in union([one, other]).variables]
['generator', 'discriminator']
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from autodist_core.step import naming
from autodist_core.step.editor import Editor
from autodist_core.step.graph_item import Gradient, GraphItem, Variable


def union(items: Sequence[GraphItem]) -> GraphItem:
    """Return one item with the variables, gradients and nodes of all of these. One item is returned as it is."""
    if len(items) == 1:
        return items[0]
    graph = Editor.of(items[0].graph_def).empty()
    variables: dict[str, Variable] = {}
    gradients: list[Gradient] = []
    outputs: list[str] = []
    occurrences = 0
    for number, item in enumerate(items):
        graph.add_library(item.graph_def.library)
        for variable in item.variables:
            known = variables.get(variable.name, variable)
            variables[variable.name] = replace(
                known, trainable=known.trainable or variable.trainable,
                is_sparse=known.is_sparse or variable.is_sparse,
                handle=_handle(variable) if known.handle or variable.handle else "",
            )
        renamed = partial(_renamed, number, {v.handle: _handle(v) for v in item.variables if v.handle})
        _copy(graph, item, renamed, occurrences)
        gradients += [
            replace(
                each, occurrence=each.occurrence + occurrences, values=renamed(each.values),
                indices=renamed(each.indices),
            )
            for each in item.gradients
        ]
        outputs += map(renamed, item.outputs)
        marked = (node.attr[naming.UPDATE].i for node in item.graph_def.node if naming.UPDATE in node.attr)
        occurrences += 1 + max((*marked, *(gradient.occurrence for gradient in item.gradients)), default=-1)
    content = graph.graph_def(captured=True).SerializeToString(deterministic=True)
    return GraphItem(tuple(variables.values()), tuple(gradients), outputs=tuple(outputs), graph_bytes=content)


def _handle(variable: Variable) -> str:
    return f"variable/{naming.safe(variable.name)}"


def _renamed(number: int, handles: Mapping[str, str], name: str) -> str:
    """The name of one item's node or tensor among those of all. All items have one node for a variable's handle."""
    node, output = naming.split(name)
    return naming.tensor(handles.get(node) or f"step{number}/{node}", output) if name else ""


def _copy(graph: Editor, item: GraphItem, renamed: Callable[[str], str], occurrences: int) -> None:
    for node in item.graph_def.node:
        name = renamed(node.name)
        if name in graph:
            continue
        graph.copy_captured(node, name, [renamed(source) for source in node.input])
        if naming.UPDATE in node.attr:
            graph.mark_update(name, node.attr[naming.UPDATE].i + occurrences)
        pivots = naming.branch_of(node)
        if pivots:
            graph.mark_branch(name, [renamed(pivot) for pivot in pivots])
