"""Refuse a step of `evaluate` or `predict` that writes what a server updates in training.

In: the state of a session, and a captured step. Out: the step, or a `CaptureError` that names the variable. Such a step
has no update that the server could run. Each replica would write a copy of its own, and the server's would stay.
"""

from autodist_core.errors import REFUSED, CaptureError
from autodist_core.kernel import Placement
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex
from autodist_core.training import TrainingState


def admitted(state: TrainingState, item: GraphItem) -> GraphItem:
    """The step, unless it is refused.

    >>> from autodist_core.runtime.example import example_session
    >>> from autodist_core.strategy import PS
    >>> session, train = example_session(PS())
    >>> admitted(TrainingState(session), train.item) is train.item
    True
    >>> session.close()
    """
    step, placement = StepIndex.of(item), state.session.placement
    if item.gradients or step.occurrences:
        return item
    placed = placement.owner_of.keys() | placement.parts.keys()
    for name in sorted(step.written_by_compute & placed):
        if not _is_written_whole(placement, name):
            raise CaptureError(
                f"{REFUSED}trained variable {name!r} is written by a step without an optimizer, as evaluate and "
                "predict run it, and a server has the variable. Let the layer write it only if training=True, or use "
                "strategy='AllReduce' with share_memory=False."
            )
    return item


def _is_written_whole(placement: Placement, name: str) -> bool:
    """Whether the replicas' writes reach all copies, each once."""
    if name in placement.parts:
        return False
    owner = placement.owner(placement.owner_of[name])
    only = len(placement.replicas) == 1 and placement.mirror(name, placement.replicas[0])
    return owner.replica is not None or only == placement.owned_copy(name, owner)
