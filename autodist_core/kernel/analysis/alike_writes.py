"""Find the writes of a step that every replica does alike, and let the owners of the variables do them instead.

In: the index of a captured step. Out: names of nodes, or a step in which these nodes are an update. For a function that
zeroes a sum of gradients, which another function adds to::

    alike_writes(step)                     ->  {"AssignVariableOp"}
    with_alike_updates(step, {"total"})    ->  the step, in which AssignVariableOp is an update without gradients

Such a write needs variables, constants and whole arguments only, and nothing of the batch.
"""

from collections.abc import Collection
from dataclasses import replace

from autodist_core.kernel.analysis.gradient_flow import first_written, reads_own
from autodist_core.step import naming
from autodist_core.step.editor import Editor
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex, analysis


@analysis
def alike_writes(step: StepIndex) -> frozenset[str]:
    """Return the nodes of compute that write a value which needs nothing of the batch, and no random number.

    >>> from autodist_core.capture.example import example_step
    >>> sorted(alike_writes(StepIndex(example_step())))
    []
    """
    item = step.item
    own = step.behind([
        *step.batch, item.examples, item.total, item.replica, *item.over_replicas, *step.markers, *step.draws,
        *step.update_of, *reads_own(step),
    ])  # fmt: skip
    return frozenset(
        name for name in step.writers - own
        if all(step.variables[touch.variable].kind != "seed" for touch in step.touches[name])
    )


def with_alike_updates(step: StepIndex, variables: Collection[str]) -> GraphItem | None:
    """Return the step in which these variables are written by an update, or None if a write of them is not alike.

    The variables that this update reads, and that the step writes alike, are written by it, too.

    >>> from autodist_core.capture.example import example_step
    >>> with_alike_updates(StepIndex(example_step()), {"total"}) is None
    True
    """
    alike, chosen, growing = alike_writes(step), set(variables), True
    while growing:
        writes = step.writes_of(chosen)
        if not writes <= alike:
            return None
        more = step.written_by(alike) & step.touched_by(step.cone(writes))
        growing = not more <= chosen
        chosen |= more
    return _marked(step, writes)


def mixed_results(step: StepIndex, variables: Collection[str]) -> bool:
    """Whether a result is made of the batch, and of one of these variables after the step has written it.

    >>> from autodist_core.capture.example import example_step
    >>> mixed_results(StepIndex(example_step()), {"velocity"})
    False
    """
    first = first_written(step)
    for output in step.item.outputs:
        made_of = step.cone([naming.node_of(output)])
        after = any(
            touch.variable in variables and step.position[name] > first.get(touch.variable, step.end)
            for name in made_of for touch in step.touches.get(name, ())
        )
        if after and not made_of.isdisjoint(step.batch):
            return True
    return False


def _marked(step: StepIndex, writes: Collection[str]) -> GraphItem:
    """Return the step with these nodes, and with what they alone need, marked as its last update."""
    others = {*step.item.targets, *step.writers}.difference(writes)
    others |= {*step.markers, *map(naming.node_of, step.item.outputs)}
    outside = step.cone(others, writes.__contains__) | step.handle_of.keys() | step.whole
    number = 1 + max(step.update_of.values(), default=-1)
    graph = Editor.of(step.graph)
    for name in step.cone(writes) - (outside - set(writes)):
        graph.mark_update(name, number)
    return replace(step.item, graph_bytes=graph.graph_def(captured=True).SerializeToString(deterministic=True))
