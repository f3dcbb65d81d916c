"""Find the nodes of compute that each replica needs, before the update.

In: the index of a captured step, and what the update hands back. Out: names of nodes. For a dense layer::

    ["x", "kernel/Read", "MatMul", "loss", "gradient"]
"""

from collections.abc import Collection, Iterable

from autodist_core.step import naming
from autodist_core.step.index import StepIndex


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
    roots |= step.alike & step.cone(step.update_of, lambda name: name in step.markers) if step.alike else set()
    later = {*after_update, *handed_back} - step.markers.keys()
    roots |= {source for name in after_update for source in step.sources(name)} - step.handle_of.keys()
    return step.in_order(step.cone(roots - later) - step.handle_of.keys() - step.tables)
