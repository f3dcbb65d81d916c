"""Decide which replicas compute on one copy of the weights.

In: a compiled strategy and the setting `share_memory`. Out: for each replica, the index of the replica on whose copies
it computes. For two machines with two CPU devices each::

    (0, 0, 2, 2)    the replicas of each machine share memory
    (0, 1, 2, 3)    each replica has copies of its own

CPU devices of one process can share memory. No gradient travels between such replicas, so none is compressed, and no
replica can be ahead of another. A strategy with a compressor or with staleness therefore gets copies for each replica.
"""

from autodist_core.resource_spec import DeviceSpec
from autodist_core.strategy.compiled import CompiledStrategy, allows_lead
from autodist_core.strategy.synchronizers import AllReducePlan


def memories(strategy: CompiledStrategy, asked: bool | None) -> tuple[int, ...]:
    """Return for each replica the index of the first replica with the same memory.

    `asked` is the setting `share_memory`. False gives each replica copies of its own. Otherwise the strategy decides.

    >>> from autodist_core import GraphItem, ResourceSpec, StrategyCompiler
    >>> from autodist_core.step.graph_item import Variable
    >>> from autodist_core.strategy import PS
    >>> item, spec = GraphItem((Variable("w", (3, 2), "float32"),)), ResourceSpec.local(cpus=2)
    >>> strategy = StrategyCompiler(item, spec).compile(PS().build(item, spec))
    >>> memories(strategy, None), memories(strategy, False)
    ((0, 0), (0, 1))
    """
    alone = tuple(range(len(strategy.replicas)))
    synchronizers = [synchronizer for plan in strategy.variables for _, synchronizer in plan.pieces]
    if asked is False or any(
        each.compressor != "NoneCompressor" if isinstance(each, AllReducePlan) else allows_lead(each)
        for each in synchronizers
    ):
        return alone
    devices = [DeviceSpec.parse(name) for name in strategy.replicas]
    places = [device.address if device.kind == "CPU" else device for device in devices]
    return tuple(places.index(place) for place in places)
