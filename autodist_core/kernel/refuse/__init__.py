"""Refuse a captured step that the replicas of a placement cannot run together.

In: the index of a captured step, and its placement. Out: nothing, or one error that lists every violation::

    compute    gradients are computed from 'total', read at 'Read_3': this variable is summed up ...
    update     the update draws random numbers at 'normal' (RandomStandardNormal), and every replica would draw ...

The kernels rely on it: none of them refuses a step. A draft examines its step before the first kernel runs, and the
plan of a captured step examines it without any kernel. What can be seen in a traced step alone, without the number of
replicas and their devices, was refused before (`autodist_core.capture.refuse`).
"""

from autodist_core.errors import Refusals
from autodist_core.kernel.placement.arrangement import Arrangement
from autodist_core.kernel.placement.placement import Placement
from autodist_core.kernel.placement.placing import place
from autodist_core.kernel.refuse.compute import compute_refused
from autodist_core.kernel.refuse.update import update_refused
from autodist_core.kernel.splitting.shard_lookups import lookups_refused
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex

__all__ = ["examine", "require_distributable"]


def require_distributable(step: StepIndex, placement: Placement) -> None:
    """Raise an error that lists every reason why the replicas of a placement cannot run a captured step.

    >>> from autodist_core.kernel.placement.placing import inference
    >>> require_distributable(StepIndex(GraphItem(())), inference(("localhost:CPU:0", "localhost:CPU:1")))
    """
    refusals = Refusals()
    refusals.add(*compute_refused(step, placement), *update_refused(step, placement))
    refusals.require_none()


def examine(item: GraphItem, arranged: Arrangement, share_memory: bool | None = None) -> None:
    """Refuse a captured step as a training would, without building anything; `arrange` makes the arrangement.

    >>> from autodist_core import ResourceSpec, StrategyCompiler, Variable
    >>> from autodist_core.kernel import arrange
    >>> from autodist_core.strategy import PS
    >>> item, spec = GraphItem((Variable("w", (3, 2), "float32"),)), ResourceSpec.local(cpus=2)
    >>> examine(item, arrange(item, StrategyCompiler(item, spec).compile(PS().build(item, spec))))
    """
    step, refusals, partitioner = StepIndex.of(item), Refusals(), arranged.partitioner
    refusals.add(*lookups_refused(step, partitioner.looked_up))
    # The shards of a variable have one update, that of the whole variable: they need not be made to examine it.
    whole = arranged.strategy.for_step(partitioner.plans)
    with refusals.collecting():
        require_distributable(step, place(item, whole, share_memory))
    refusals.require_none()
