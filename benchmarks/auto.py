"""Compare what `strategy="auto"` predicts of a step with what is measured over hosts of the test network.

    python benchmarks/auto.py [--models mlp cnn] [--hosts 2] [--rate 1gbit] [--slow 250mbit] [--rounds 4] [--steps N]
                              [--json]

Every builder, with factors and without, trains over the hosts, all in turns; of those that do the same for a model, the
first. One replica on one device says how long the processors compute, which all hosts share. No other
figure of these models goes into a prediction: `autodist_core/auto` says where its constants come from. The last
contender is `strategy="auto"` itself, which measures its own step.

The ranking accuracy is the share of pairs that are predicted in the right order, of the pairs of strategies whose
measured times differ by more than 5 %. Beside it stands that of a measurement as a prediction: of the even rounds, for
the odd ones.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from bounds import bits_per_second
from contenders import ONE, distributed
from figures import noise
from hosts import network
from options import JSON, RATE, command, option
from turns import Job, Training, in_turns
from workloads import BATCH, WORKLOADS

from tests.network.lan import missing

AUTO = "auto"
_DIFFERENT = 1.05
"""The ratio of two measured times from which on their order counts."""


def accuracy(predicted: Mapping[str, float], measured: Mapping[str, float]) -> tuple[float, int]:
    """The share of pairs that are predicted in the right order, of those whose times differ; and how many these are.

    >>> accuracy({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 10.0, "b": 31.0, "c": 30.0})
    (1.0, 2)
    """
    pairs = [
        sorted(pair, key=lambda name: measured[name]) for pair in combinations(predicted, 2)
        if max(measured[name] for name in pair) > _DIFFERENT * min(measured[name] for name in pair)
    ]
    right = sum(predicted[fast] < predicted[slow] for fast, slow in pairs)
    return right / len(pairs) if pairs else 1.0, len(pairs)


def block(workload: str, predicted: Mapping[str, float], times: Mapping[str, list[float]]) -> str:
    """The lines of one model; predictions are milliseconds.

    >>> text = block("mlp", {"PS": 90.0, "AllReduce": 50.0}, {"one": [30.0], "PS": [100.0], "AllReduce": [50.0],
    ...     "auto": [51.0]})
    >>> print(text[text.index("  median") :])
      median error 5 %, ranking accuracy 1.00 of 1 pair, measured 1.00
      predicted best AllReduce, 0 % slower than the best; auto 2 %
    """
    measured = {name: median(times[name]) for name in times}
    errors = {name: predicted[name] / measured[name] - 1 for name in predicted}
    lines = [f"{workload}: {WORKLOADS[workload].title}; one replica {measured[ONE]:.1f} ms"]
    for name in sorted(predicted, key=lambda name: measured[name]):
        apart = f"quartiles {noise(times[name]):.0%} apart"
        lines.append(f"  {name:36}{predicted[name]:9.1f}{measured[name]:9.1f} ms {errors[name]:+7.0%}  {apart}")
    best, found = min(measured[name] for name in predicted), min(predicted, key=lambda name: predicted[name])
    right, pairs = accuracy(predicted, measured)
    odd, even = ({name: median(times[name][start::2] or times[name]) for name in predicted} for start in (1, 0))
    lines += [f"  {AUTO:36}{'':9}{measured[AUTO]:9.1f} ms"] if AUTO in measured else []
    ending = f"; auto {100 * (measured[AUTO] / best - 1):.0f} %" if AUTO in measured else ""
    lines += [
        f"  median error {100 * median(map(abs, errors.values())):.0f} %, ranking accuracy {right:.2f} of {pairs} "
        f"pair{'s' * (pairs != 1)}, measured {accuracy(even, odd)[0]:.2f}",
        f"  predicted best {found}, {100 * (measured[found] / best - 1):.0f} % slower than the best{ending}",
    ]
    return "\n".join(lines)


def compared(workload: str, spec: Any, one: float = 1e3) -> dict[str, Any]:
    """The candidates for a model by name, without those that do the same; `one` is a step of one replica in ms.

    >>> from autodist_core import ResourceSpec
    >>> "PS" in compared("one_layer", ResourceSpec({"nodes": [{"address": "a", "chief": True}, {"address": "b"}]}))
    True
    """
    from growth import captured

    from autodist_core.auto.choosing import USUAL
    from autodist_core.auto.profiles import ClusterProfile
    from autodist_core.auto.trial import trial_of

    item, hosts = captured(workload), len(spec.nodes)
    trial = trial_of(item, spec, BATCH)
    rate = trial.charging.model.operations * BATCH / (one / 1e3) / hosts
    processors = (os.cpu_count() or 1) / hosts
    machines = trial.charging.cluster.machines
    cluster = ClusterProfile(tuple(replace(each, rate=rate, processors=processors) for each in machines))
    return {each.name: each for each in trial.on(cluster).compared(USUAL)}


def measure(made: Any, workload: str, content: Any, names: Sequence[str], steps: int, rounds: int) -> Any:
    """The milliseconds per step of one replica, of these strategies and of auto, which train in turns."""
    from autodist_core.strategy.written import read_builder

    contenders = {ONE: partial(distributed, replicas=1, fused_kernels=True)}
    contenders |= {name: partial(distributed, strategy=read_builder(name)) for name in names}
    contenders[AUTO] = partial(distributed, strategy=AUTO)
    jobs = {name: Job(workload, steps, rounds, None if name == ONE else content) for name in contenders}
    # `auto` measures a step when it starts: no other contender may start meanwhile.
    return in_turns((Training(name, train, jobs[name]) for name, train in contenders.items()), rounds)


def main() -> None:
    """Measure each model and print its block."""
    parser = command(__doc__)
    option(parser, "--models", "some of the models", ["mlp", "cnn"], nargs="+", choices=WORKLOADS)
    option(parser, "--hosts", "the number of hosts", 2, type=int)
    option(parser, "--rate", RATE, "1gbit")
    option(parser, "--slow", "what the last host's cable carries", None, said="as the others")
    option(parser, "--rounds", "turns of each contender", 4, type=int)
    option(parser, "--steps", "steps of each turn", None, said="by the model", type=int)
    option(parser, "--json", JSON)
    given = parser.parse_args()
    if missing():
        parser.exit(1, f"{missing()}.\n")
    from autodist_core import ResourceSpec

    results = {}
    for name in given.models:
        with network(given.hosts, given.rate) as made:
            content = made.spec()
            rates = [given.rate] * (given.hosts - 1) + [given.slow or given.rate]
            made.hosts[-1].shape(rates[-1])
            for node, rate in zip(content["nodes"], rates, strict=True):
                node["network_bandwidth"] = bits_per_second(rate) / 1e9
            names, steps = list(compared(name, ResourceSpec(content))), given.steps or WORKLOADS[name].steps
            times = measure(made, name, content, names, steps, given.rounds)
        made_for = compared(name, ResourceSpec(content), median(times[ONE]))
        found = {strategy: 1e3 * each.prediction.step for strategy, each in made_for.items()}
        results[name] = {"predicted": found, "times": times}
        if not given.json:
            print(block(name, found, times), flush=True)
    if given.json:
        print(json.dumps({"hosts": given.hosts, "rate": given.rate, "models": results}))


if __name__ == "__main__":
    main()
