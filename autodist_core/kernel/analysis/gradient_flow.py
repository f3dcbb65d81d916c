"""Find the nodes of compute that need reduced gradients, and the nodes that read values of one replica only.

In: the index of a captured step. Out: sets of node names. For a step that keeps a running mean of a gradient's norm::

    after_update(step)  ->  {"Mul", "AssignVariableOp"}       the running mean: compute, after the update
    handed_back(step)   ->  ("norm",)                         a node of the update whose value compute reads
    reads_own(step)     ->  {"ReadVariableOp_3": "total"}     a read of a metric's sum, which each replica has a part of
"""

from collections.abc import Collection, Iterable

from autodist_core.step import naming
from autodist_core.step.index import StepIndex, analysis


@analysis
def after_update(step: StepIndex) -> frozenset[str]:
    """Return the nodes of compute that run after the update: they read reduced gradients, and no gradient needs them.

    A node that reads a variable which such a node has written is one of them, too.

    >>> from autodist_core.capture.example import example_step
    >>> sorted(after_update(StepIndex(example_step())))
    ['Identity_1']
    """
    before = step.cone(step.markers)
    return frozenset(name for name in _made_of_gradients(step) if not step.is_update(name) and name not in before)


@analysis
def handed_back(step: StepIndex) -> tuple[str, ...]:
    """Return the nodes whose values the update hands back to compute.

    Nodes that run after the update read these values, or they are results of the step.

    >>> from autodist_core.capture.example import example_step
    >>> handed_back(StepIndex(example_step()))
    ('norm/Squeeze',)
    """
    read = {naming.node_of(source) for name in after_update(step) for source in naming.data_inputs(step.nodes[name])}
    read.update(naming.node_of(name) for name in step.item.outputs)
    made = {name for name in _made_of_gradients(step) if step.is_update(name)}
    return tuple(step.in_order(read & (made | step.markers.keys())))


@analysis
def _made_of_gradients(step: StepIndex) -> frozenset[str]:
    found: set[str] = set()
    written: set[str] = set()
    for name in step.position:
        if name in step.markers:
            continue
        touched = () if step.is_update(name) else step.touches.get(name, ())
        reads = any(not touch.writes and touch.variable in written for touch in touched)
        if reads or any(source in found or source in step.markers for source in step.sources(name)):
            found.add(name)
            written.update(touch.variable for touch in touched if touch.writes)
    return frozenset(found)


@analysis
def reads_own(step: StepIndex) -> dict[str, str]:
    """Return the nodes that read a variable while its copies differ between replicas, and for each the variable.

    Copies differ after compute has written a value that depends on the batch or on random numbers. The copies of a
    variable with the aggregation `sum` always differ: the sum is on the first replica.

    >>> from autodist_core.capture.example import example_step
    >>> reads_own(StepIndex(example_step()))
    {'AssignAddVariableOp': 'total'}
    """
    inputs = {*step.batch, step.item.examples, step.item.replica, *step.draws}
    equal = {*step.markers, *step.item.over_replicas}
    apart = {name for name, variable in step.variables.items() if variable.aggregation == "sum"}
    differing: set[str] = set()
    found: dict[str, str] = {}
    for name in step.position:
        for variable in sorted(step.touched_by([name]) & apart):
            found[name] = variable
        differs = name in inputs or name in found or any(source in differing for source in step.sources(name))
        if differs and name not in equal:
            differing.add(name)
        if name in differing and not step.is_update(name):
            apart |= step.written_by([name])
    return found


@analysis
def first_written(step: StepIndex) -> dict[str, int]:
    """Return for each variable the position of the node of compute that first writes it.

    >>> from autodist_core.capture.example import example_step
    >>> sorted(first_written(StepIndex(example_step())))
    ['total']
    """
    found: dict[str, int] = {}
    for node in step.in_order(step.writers - step.update_of.keys()):
        for variable in step.written_by([node]):
            found.setdefault(variable, step.position[node])
    return found


def compute_of(
    step: StepIndex, gradients: Iterable[str], after_update: Collection[str] = (), handed_back: Collection[str] = ()
) -> list[str]:
    """Return the captured nodes that are copied for each active replica, in the order of their creation.

    `gradients` are the tensors from which gradients are reduced. The result has nodes of the update, too, if compute
    reads their values.

    >>> from autodist_core import GraphItem
    >>> compute_of(StepIndex(GraphItem(())), ())
    []
    """
    roots = step.side_effects | {naming.node_of(name) for name in gradients}
    roots |= {naming.node_of(name) for name in step.item.outputs}
    # Inputs that every replica gets whole belong to compute. The update may read one replica's copy of them.
    roots |= step.whole & step.cone(step.update_of, lambda name: name in step.markers) if step.whole else set()
    later = {*after_update, *handed_back} - step.markers.keys()
    roots |= {source for name in after_update for source in step.sources(name)} - step.handle_of.keys()
    return step.in_order(step.cone(roots - later) - step.handle_of.keys() - step.tables)
