"""Try strategies for a step, and order them by their predictions.

In: a captured step, the machines, and the number of examples of a batch. Out: a `Candidate` for each strategy, the best
one first. Strategies that do not fit into memory come last. Of equals, the one that is tried first is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autodist_core.auto.charges import Charge, Charging
from autodist_core.auto.prediction import Prediction, predict
from autodist_core.auto.profiles import ClusterProfile, ModelProfile
from autodist_core.plan import DeviceMemory, plan_table, state_memory
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy import (
    PS,
    AllReduce,
    Parallax,
    PartitionedAR,
    PartitionedPS,
    PSLoadBalancing,
    RandomAxisPartitionAR,
    Sharded,
    Strategy,
    StrategyBuilder,
    UnevenPartitionedPS,
)
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.strategy.compiler import StrategyCompiler
from autodist_core.strategy.synchronizers import HALF_PRECISION
from autodist_core.strategy.written import written

_HALF = HALF_PRECISION[1]
"""The compressor of half precision that keeps what it has left out."""
USUAL: tuple[StrategyBuilder, ...] = (
    Parallax(), AllReduce(), PS(), PSLoadBalancing(), PartitionedPS(), UnevenPartitionedPS(), PartitionedAR(),
    RandomAxisPartitionAR(), Parallax(factor_rows=0), AllReduce(factor_rows=0),
)  # fmt: skip
"""What is tried always. The default strategy is the first: others replace it only if they are faster."""
SHARDED: tuple[StrategyBuilder, ...] = (Sharded(), Sharded(weights="gathered"))
ALLOWED: dict[str, tuple[StrategyBuilder, ...]] = {
    "Sharded": SHARDED,
    "float16": tuple(make(compressor=_HALF) for make in (Parallax, AllReduce)),
    "bfloat16": tuple(make(compressor=_HALF, wire_dtype="bfloat16") for make in (Parallax, AllReduce)),
    "PowerSGDCompressor": tuple(make(compressor="PowerSGDCompressor") for make in (Parallax, AllReduce)),
}
"""What is tried only if the user allows it, by what the user says."""


@dataclass(frozen=True)
class Candidate:
    """One strategy, and what is predicted of it.

    >>> Candidate("PS", Strategy(), CompiledStrategy("3f9c21", (), ()), (), (), Prediction(0.1, {}, {})).name
    'PS'
    """

    name: str
    strategy: Strategy = field(compare=False)
    compiled: CompiledStrategy
    """The strategy as the step carries it out."""
    memories: tuple[int, ...]
    """For each replica, the index of the replica on whose copies it computes; empty if each has its own."""
    charges: tuple[Charge, ...]
    prediction: Prediction


@dataclass(frozen=True)
class Trial:
    """Predicts strategies for one step on some machines.

    >>> from autodist_core import Variable
    >>> spec = ResourceSpec({"nodes": [{"address": f"10.0.0.{n}", "chief": n == 1} for n in (1, 2, 3)]})
    >>> item = GraphItem((Variable("kernel", (2000, 1000), "float32"), Variable("bias", (1000,), "float32")))
    >>> trial = Trial.of(item, spec, 1024)
    >>> for each in trial.compared(USUAL)[:3]:
    ...     print(f"{each.name:22} {1e3 * each.prediction.step:.0f} ms")
    UnevenPartitionedPS    299 ms
    Parallax               299 ms
    PartitionedPS          343 ms
    """

    item: GraphItem
    spec: ResourceSpec
    charging: Charging
    carried_out: Callable[[CompiledStrategy], tuple[CompiledStrategy, tuple[int, ...]]] = lambda made: (made, ())
    """How the step carries a strategy out, where it needs variables whole, and which replicas share memory."""
    available: Callable[[str], int | None] | None = None
    """The bytes that a memory has, and None where that is not known."""

    @staticmethod
    def of(
        item: GraphItem, spec: ResourceSpec, examples: int, model: ModelProfile | None = None,
        cluster: ClusterProfile | None = None, **more: Any,
    ) -> Trial:
        """A trial with the profiles that are given, and else with what is assumed."""
        profiles = model or ModelProfile.assumed(item), cluster or ClusterProfile.of(spec)
        return Trial(item, spec, Charging(*profiles, examples), **more)

    def on(self, cluster: ClusterProfile) -> Trial:
        """The same trial on machines of which something else is known."""
        return replace(self, charging=replace(self.charging, cluster=cluster))

    @property
    def compute(self) -> dict[str, float]:
        """The seconds of the forward and backward pass on each machine."""
        machines, charging = self.charging.cluster.machines, self.charging
        replicas = sum(each.replicas for each in machines)
        operations = charging.model.operations * -(-charging.examples // replicas)
        return {each.address: operations / each.operations for each in machines}

    def compared(self, builders: Iterable[StrategyBuilder]) -> list[Candidate]:
        """The candidates of these builders, the best one first. Of strategies that do the same, the first is kept."""
        found: dict[tuple[Charge, ...], Candidate] = {}
        for builder in builders:
            each = self.candidate(written(builder), builder.build(self.item, self.spec))
            found.setdefault(each.charges, each)
        return sorted(found.values(), key=lambda each: round(each.prediction.step, 7))

    def candidate(self, name: str, strategy: Strategy) -> Candidate:
        """A strategy with its prediction."""
        compiled, memories = self.carried_out(StrategyCompiler(self.item, self.spec).compile(strategy))
        charges = tuple(map(self.charging.of, compiled.variables))
        prediction = predict(charges, self.charging.cluster.machines, self.compute)
        return Candidate(name, strategy, compiled, memories, charges, prediction)

    def memory(self, candidate: Candidate) -> tuple[DeviceMemory, ...]:
        """The state that each device must hold, of those of which it is known what they have."""
        if self.available is None:
            return ()
        held = state_memory(plan_table(candidate.compiled, self.item, candidate.memories), self.item)
        named = ((name, each) for each in held for name in each.devices)
        found = (replace(each, devices=(name,), available=self.available(name)) for name, each in named)
        return tuple(each for each in found if each.available is not None)

    def fits(self, candidate: Candidate) -> bool:
        """Whether all devices can hold their state, as far as is known."""
        return all(each.fits for each in self.memory(candidate))


def best(trial: Trial, allow: Sequence[str]) -> list[Candidate]:
    """The candidates for a user, the best one of those that fit first. Sharded is among them if nothing else fits.

    >>> from autodist_core import Variable
    >>> item, spec = GraphItem((Variable("kernel", (2000, 1000), "float32"),)), ResourceSpec.local(cpus=2)
    >>> best(Trial.of(item, spec, 64), ("bfloat16",))[0].name
    'Parallax'
    """
    found = trial.compared((*USUAL, *(builder for name in allow for builder in ALLOWED[name])))
    for more in ((), SHARDED):
        found += trial.compared(more)
        for place, each in enumerate(found):
            if trial.fits(each):
                return [each, *found[:place], *found[place + 1 :]]
    return found
