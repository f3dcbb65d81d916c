"""Whether the replicas of one process compute on one copy of the weights.

They may where all are CPU devices and each would hold the same: nothing travels then, so nothing is compressed, and no
replica can be behind another. A strategy that asks for either gets a copy for each replica.
"""

from __future__ import annotations

from collections.abc import Iterator

from autodist_core.compiler import AllReducePlan, CompiledStrategy, VariablePlan
from autodist_core.errors import StrategyError


def shares_memory(strategy: CompiledStrategy, asked: bool | None) -> bool:
    """What is done for `share_memory=asked`; None leaves it to the strategy, which True may contradict."""
    kinds = {tuple(replica.rsplit(":", 2)[:2]) for replica in strategy.replicas}
    one_process = len(kinds) == 1 and {kind for _, kind in kinds} == {"CPU"}
    if asked is False or len(strategy.replicas) == 1 or not one_process:
        return False
    apart = [(plan.variable.name, reason) for plan in strategy.variables for reason in _reasons(plan)]
    if asked and apart:
        name, reason = apart[0]
        raise StrategyError(
            f"share_memory=True: variable {name!r} has {reason}, for which every replica needs its own copy of the "
            "weights. Leave share_memory out, or take the option out of the strategy."
        )
    return not apart


def _reasons(plan: VariablePlan) -> Iterator[str]:
    for _, synchronizer in plan.pieces:
        if isinstance(synchronizer, AllReducePlan):
            if synchronizer.compressor != "NoneCompressor":
                yield f"compressor={synchronizer.compressor}"
        elif not synchronizer.sync:
            yield "sync=False"
        elif synchronizer.staleness:
            yield f"staleness={synchronizer.staleness}"
