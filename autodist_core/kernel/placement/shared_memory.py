"""Which replicas compute on one copy of the weights.

Those of one process may where all are CPU devices and each would hold the same: nothing travels between them then, so
nothing is compressed, and none can be behind another. A strategy that asks for either gets a copy for each replica.
"""

from __future__ import annotations

from collections.abc import Iterator

from autodist_core.errors import StrategyError
from autodist_core.resource_spec import DeviceSpec
from autodist_core.strategy.compiled import CompiledStrategy, VariablePlan
from autodist_core.strategy.synchronizers import AllReducePlan


def memories(strategy: CompiledStrategy, asked: bool | None) -> tuple[int, ...]:
    """For each replica the first one that has the same memory, which is itself where each has its own.

    `share_memory=asked` decides; None leaves it to the strategy, which True may contradict.
    """
    devices = [DeviceSpec.parse(name) for name in strategy.replicas]
    places = [device.address if device.kind == "CPU" else device for device in devices]
    together = tuple(places.index(place) for place in places)
    alone = tuple(range(len(places)))
    if asked is False or together == alone:
        return alone
    apart = [(plan.variable.name, reason) for plan in strategy.variables for reason in _reasons(plan)]
    if asked and apart:
        name, reason = apart[0]
        raise StrategyError(
            f"share_memory=True: variable {name!r} has {reason}, for which every replica needs its own copy of the "
            "weights. Leave share_memory out, or take the option out of the strategy."
        )
    return alone if apart else together


def shares_memory(strategy: CompiledStrategy, asked: bool | None) -> bool:
    """Whether all replicas compute on one copy of the weights."""
    found = memories(strategy, asked)
    return len(found) > 1 and set(found) == {0}


def _reasons(plan: VariablePlan) -> Iterator[str]:
    for _, synchronizer in plan.pieces:
        if isinstance(synchronizer, AllReducePlan):
            if synchronizer.compressor != "NoneCompressor":
                yield f"compressor={synchronizer.compressor}"
        elif not synchronizer.sync:
            yield "sync=False"
        elif synchronizer.staleness:
            yield f"staleness={synchronizer.staleness}"
