"""Auto: the strategy that chooses itself.

In: a GraphItem and a ResourceSpec. Out: the Strategy that is predicted to be fastest, with notes on the choice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from autodist_core.auto.choosing import ALLOWED, Candidate, Trial, best
from autodist_core.auto.improving import improved
from autodist_core.auto.prediction import BACK, COMPUTE, PARTS, UPDATING, WIRE, Prediction, predict
from autodist_core.auto.profiles import EXAMPLES
from autodist_core.auto.trial import assumptions, trial_of
from autodist_core.errors import StrategyError, amount
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy import Strategy, StrategyBuilder
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.strategy.options import check_choice, check_integer


@dataclass(frozen=True)
class Auto(StrategyBuilder):
    """Takes the strategy that is predicted to be fastest for this model, batch and cluster.

    It tries all builders whose numbers are one device's, and then changes single variables. What it chose is a plain
    strategy with notes. Measured times differ from run to run, and so may choices.

    >>> from autodist_core import Variable
    >>> item = GraphItem((Variable("kernel", (6, 4), "float32"),))
    >>> print(*Auto().build(item, ResourceSpec.local(cpus=2)).notes[:1])
    auto chose Parallax of ... strategies: ... ms predicted for 32 examples (no batch is known) = compute ...
    >>> Auto(allow=("bfloat61",))
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: Auto(allow='bfloat61'): unknown allow. Did you mean 'bfloat16'? Known: Sharded,
        float16, bfloat16, PowerSGDCompressor.
    """

    allow: tuple[str, ...] = ()
    """What is tried besides: ``Sharded``, and compressors, which change the numbers: ``float16``, ``bfloat16``,
    ``PowerSGDCompressor``. ``Sharded`` is tried in any case if nothing else fits into memory."""

    trials: int = 0
    """Of how many strategies, those that are predicted to be fastest, a `fit` first runs some steps, on its first batch
    and on copies of the variables. It keeps the fastest."""

    reads_steps = True

    def __post_init__(self) -> None:
        """Refuse what is not known."""
        check_integer("Auto", "trials", self.trials, 0)
        allowed = [self.allow] if isinstance(self.allow, str) else self.allow
        if not isinstance(allowed, list | tuple):
            raise StrategyError(f"Auto(allow={allowed!r}): allow is a tuple of names: {', '.join(ALLOWED)}.")
        object.__setattr__(self, "allow", tuple(allowed))
        for each in self.allow:
            check_choice("Auto", "allow", each, ALLOWED)

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        return next(self._ranked(graph_item, resource_spec))[1]

    def candidates(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> dict[str, Strategy]:
        """Return the strategies that are tried on a step, the one that is predicted to be fastest first.

        >>> from autodist_core import Variable
        >>> item = GraphItem((Variable("kernel", (6, 4), "float32"),))
        >>> list(Auto(trials=2).candidates(item, ResourceSpec.local(cpus=2)))
        ['Parallax', 'PS']
        """
        return dict(islice(self._ranked(graph_item, resource_spec), self.trials)) if self.trials else {}

    def _ranked(self, item: GraphItem, spec: ResourceSpec) -> Iterator[tuple[str, Strategy]]:
        trial = trial_of(item, spec, item.usual_examples or EXAMPLES)
        found = best(trial, self.allow)
        if (chosen := improved(trial, found[0])) is not found[0]:
            found.insert(0, chosen)
        for each in found:
            others = [other for other in found if other is not each]
            yield each.name, each.strategy.noted(*notes(trial, each, others, known=item.usual_examples > 0))


def beside_measured(
    item: GraphItem, strategy: CompiledStrategy, spec: ResourceSpec, examples: int, node: str,
    measured: Mapping[str, float],
) -> str:
    """What is predicted of the steps of a strategy on one node, beside the seconds that were measured there.

    >>> from autodist_core import StrategyCompiler, Variable
    >>> item, spec = GraphItem((Variable("kernel", (600, 400), "float32"),)), ResourceSpec.local(cpus=2)
    >>> strategy = StrategyCompiler(item, spec).compile(Auto().build(item, spec))
    >>> print(beside_measured(item, strategy, spec, 64, "localhost", {"compute": 0.0011, "update": 0.0001}))
    auto predicted 4.7 ms = compute 4.6 (measured 1.1) + wire 0.0 (0.0) + update 0.1 (0.1): compute is furthest off
    """
    trial = trial_of(item, spec, examples)
    machines = trial.charging.cluster.machines
    found = predict(map(trial.charging.of, strategy.variables), machines, trial.compute).parts[node]
    expected = {"compute": found[COMPUTE], "wire": found[WIRE] + found[BACK], "update": found[UPDATING]}
    seconds = {name: measured.get(name, 0.0) for name in expected}
    seconds["compute"] += measured.get("TensorFlow", 0.0)  # as in what is measured of one replica
    said = " + ".join(
        f"{name} {1e3 * each:.1f} ({'measured ' * (name == 'compute')}{1e3 * seconds[name]:.1f})"
        for name, each in expected.items()
    )
    off = max(expected, key=lambda name: abs(expected[name] - seconds[name]))
    return f"auto predicted {_ms(sum(found.values()))} = {said}: {off} is furthest off"


_SAME = 5e-5
"""Seconds that do not show in milliseconds with one digit behind the point."""


def notes(trial: Trial, chosen: Candidate, others: Sequence[Candidate], known: bool) -> Iterator[str]:
    """The notes on a choice. `others` are the candidates that were not chosen, and `known` tells of the batch's size.

    >>> from autodist_core import GraphItem, ResourceSpec, Variable
    >>> from autodist_core.auto.choosing import USUAL
    >>> spec = ResourceSpec({"nodes": [{"address": f"10.0.0.{n}", "chief": n == 1} for n in (1, 2)]})
    >>> trial = Trial.of(GraphItem((Variable("kernel", (2000, 1000), "float32"),)), spec, 64)
    >>> chosen, *others = trial.compared(USUAL)
    >>> print(*notes(trial, chosen, others, known=True), sep="\\n")
    auto chose Parallax of 5 strategies: 30.0 ms predicted for 64 examples = compute 25.6 + waiting for the ...
    auto: next is PartitionedPS: 59.4 ms more on 10.0.0.1's link
    auto: measured: nothing; taken: layers as their variables are, 20 Gflop/s for a machine, network_bandwidth of ...
    """
    found = chosen.prediction
    parts = " + ".join(f"{name} {1e3 * found.part(name):.1f}" for name in PARTS)
    batch = f"{amount(trial.charging.examples, 'example')}{'' if known else ' (no batch is known)'}"
    count = amount(len(others) + 1, "strategy", "strategies")
    yield f"auto chose {chosen.name} of {count}: {_ms(found.step)} predicted for {batch} = {parts}"
    for other in others[:1]:
        yield f"auto: next is {other.name}: {_why(found, other.prediction, trial.fits(other))}"
    if not trial.fits(chosen):
        yield "auto: no strategy fits into memory, as far as is known"
    yield from assumptions(trial)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _why(chosen: Prediction, other: Prediction, fits: bool) -> str:
    """By how much a step is longer, and in which part most."""
    more = other.step - chosen.step
    if more < -_SAME:
        return f"{_ms(-more)} less{'' if fits else ', but it does not fit into memory'}"
    if more < _SAME:
        return "as fast"
    part = max(PARTS, key=lambda name: other.part(name) - chosen.part(name))
    where = {COMPUTE: "of arithmetic", UPDATING: "of updates"}
    link = f"on {other.busiest_link}'s link"
    return f"{_ms(more)} more {where.get(part, link) if part not in (WIRE, BACK) else link}"
