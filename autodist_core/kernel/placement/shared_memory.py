"""Decide which replicas compute on one copy of the weights.

In: a compiled strategy and the setting `share_memory`. Out: for each replica, the index of the replica on whose copies
it computes. For two machines with two CPU devices each::

    (0, 0, 2, 2)    the replicas of each machine share memory
    (0, 1, 2, 3)    each replica has copies of its own

CPU devices of one process can share memory. No gradient travels between such replicas, so none is compressed, and no
replica can be ahead of another. A strategy with a compressor or with staleness therefore gets copies for each replica.
"""

from collections.abc import Iterator

from autodist_core.errors import StrategyError
from autodist_core.resource_spec import DeviceSpec
from autodist_core.strategy.compiled import CompiledStrategy, VariablePlan
from autodist_core.strategy.synchronizers import AllReducePlan


def memories(strategy: CompiledStrategy, asked: bool | None) -> tuple[int, ...]:
    """Return for each replica the index of the first replica with the same memory.

    `asked` is the setting `share_memory`. None leaves the decision to the strategy. True raises a `StrategyError` if
    the strategy needs copies for each replica.

    >>> from autodist_core import GraphItem, ResourceSpec, StrategyCompiler
    >>> from autodist_core.step.graph_item import Variable
    >>> from autodist_core.strategy import PS
    >>> item, spec = GraphItem((Variable("w", (3, 2), "float32"),)), ResourceSpec.local(cpus=2)
    >>> strategy = StrategyCompiler(item, spec).compile(PS().build(item, spec))
    >>> memories(strategy, None), memories(strategy, False)
    ((0, 0), (0, 1))
    """
    devices = [DeviceSpec.parse(name) for name in strategy.replicas]
    places = [device.address if device.kind == "CPU" else device for device in devices]
    shared = tuple(places.index(place) for place in places)
    alone = tuple(range(len(places)))
    if asked is False or shared == alone:
        return alone
    apart = [(plan.variable.name, reason) for plan in strategy.variables for reason in _reasons(plan)]
    if asked and apart:
        name, reason = apart[0]
        raise StrategyError(
            f"share_memory=True: variable {name!r} has {reason}, for which every replica needs its own copy of the "
            "weights. Leave share_memory out, or take the option out of the strategy."
        )
    return alone if apart else shared


def _reasons(plan: VariablePlan) -> Iterator[str]:
    for _, synchronizer in plan.pieces:
        if isinstance(synchronizer, AllReducePlan):
            if synchronizer.compressor != "NoneCompressor":
                yield f"compressor={synchronizer.compressor}"
        elif not synchronizer.sync:
            yield "sync=False"
        elif synchronizer.staleness:
            yield f"staleness={synchronizer.staleness}"
