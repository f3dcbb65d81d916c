"""What was chosen, and why, in words: the notes of a strategy, which the plan shows.

In: candidates. Out: lines such as `auto: next is PartitionedPS: 31.0 ms more on 10.0.0.1's link`.
"""

from collections.abc import Iterator, Sequence

from autodist_core.auto.choosing import Candidate, Trial
from autodist_core.auto.prediction import BACK, COMPUTE, PARTS, UPDATING, WIRE, Prediction
from autodist_core.auto.profiles import GPU_FLOPS
from autodist_core.errors import amount
from autodist_core.strategy.factor_rows import FLOPS

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
    auto chose Parallax of 5 strategies: 28.2 ms predicted for 64 examples = compute 25.6 + waiting for the ...
    auto: next is PartitionedPS: 59.4 ms more on 10.0.0.1's link
    auto: nothing was measured: layers as their variables are, 20 Gflop/s for a machine, network_bandwidth of the file
    """
    found = chosen.prediction
    parts = " + ".join(f"{name} {1e3 * found.part(name):.1f}" for name in PARTS)
    batch = f"{amount(trial.charging.examples, 'example')}{'' if known else ' (no batch is known)'}"
    count = amount(len(others) + 1, "strategy", "strategies")
    yield f"auto chose {chosen.name} of {count}: {_ms(found.step)} predicted for {batch} = {parts}"
    for other in others[:1]:
        yield f"auto: next is {other.name}: {_why(found, other.prediction)}"
    if not trial.fits(chosen):
        yield "auto: no strategy fits into memory, as far as is known"
    model, cluster = trial.charging.model, trial.charging.cluster
    if not cluster.seen:
        counted = "operations counted" if model.seen else "layers as their variables are"
        rates = [f"{GPU_FLOPS / 1e12:.0f} Tflop/s for a GPU"] if any(each.on_gpus for each in cluster.machines) else []
        rates += [] if all(each.on_gpus for each in cluster.machines) else [f"{FLOPS / 1e9:.0f} Gflop/s for a machine"]
        yield f"auto: nothing was measured: {counted}, {', '.join(rates)}, network_bandwidth of the file"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _why(chosen: Prediction, other: Prediction) -> str:
    """By how much a step is longer, and in which part most."""
    more = other.step - chosen.step
    if more < -_SAME:
        return f"{_ms(-more)} less, but it does not fit into memory"
    if more < _SAME:
        return "as fast"
    part = max(PARTS, key=lambda name: other.part(name) - chosen.part(name))
    where = {COMPUTE: "of arithmetic", UPDATING: "of updates"}
    link = f"on {other.busiest_link}'s link"
    return f"{_ms(more)} more {where.get(part, link) if part not in (WIRE, BACK) else link}"
