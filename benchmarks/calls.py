"""Measure what a call costs besides its step: the state comes back to the model when the call ends.

    python benchmarks/calls.py [--hosts 2] [--rate 1gbit] [--layers 16] [--strategies AllReduce PS] [--rounds 10]
                               [--json]

With `--hosts 1` there are two replicas on this machine. Otherwise the hosts are network namespaces of this machine,
whose links are limited to the rate.

The model has dense layers of 512 x 512 and Adam, so each layer has 3 MiB of state. For each strategy, these take turns:

- `train_on_batch`: one call;
- `fit`: one call with one step, which makes a dataset of its arrays, too;
- `block`: one step of 8 `train_on_batch` in a block of `one_call`, with the end of the block.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from figures import Times, quartiles
from hosts import network
from options import JSON, RATE, command, option

from tests.network.lan import missing

_BATCH, _WIDTH, _STEPS = 128, 512, 8
STRATEGIES = ("AllReduce", "PS", "PartitionedPS")


def _milliseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def measure(spec: Any, strategy: str, layers: int, rounds: int) -> Times:
    """The milliseconds per step of each kind of call, in each round."""
    import keras
    import numpy as np

    from autodist_keras import DistributedModel

    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(_WIDTH, activation="relu") for _ in range(layers)]
    model = keras.Sequential([keras.Input((_WIDTH,)), *hidden, keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
    x = np.random.default_rng(0).normal(size=(_BATCH, _WIDTH)).astype("float32")
    times: dict[str, list[float]] = {"train_on_batch": [], "fit": [], "block": []}
    with DistributedModel(model, spec, strategy) as front:

        def block() -> None:
            with front.one_call():
                for _ in range(_STEPS):
                    front.train_on_batch(x, x[:, :1])

        calls = {
            "train_on_batch": (1, lambda: front.train_on_batch(x, x[:, :1])),
            "fit": (1, lambda: front.fit(x, x[:, :1], batch_size=_BATCH, verbose=0)),
            "block": (_STEPS, block),
        }
        for _, call in calls.values():
            call()
        for _ in range(rounds):
            for name, (steps, call) in calls.items():
                times[name].append(_milliseconds(call) / steps)
    return times


def table(results: dict[str, Times]) -> str:
    """Return the results as a table.

    >>> print(table({"PS": {"train_on_batch": [3.0], "block": [1.0]}}).splitlines()[1].split())
    ['PS', 'train_on_batch', '3.0', '3.0', '..', '3.0', '2.0']
    """
    lines = [f"{'':<16}{'':<16}{'ms per step':>12}{'quartiles':>20}{'above block':>14}"]
    for strategy, times in results.items():
        for name in times:
            low, middle, high = quartiles(times[name])
            more = middle - quartiles(times["block"])[1]
            lines.append(f"{strategy:<16}{name:<16}{middle:>12.1f}{f'{low:.1f} .. {high:.1f}':>20}{more:>14.1f}")
    return "\n".join(lines)


def main() -> None:
    """Measure each strategy, and print a table."""
    parser = command(__doc__)
    option(parser, "--hosts", "the number of hosts; 1 for two replicas on this machine", 2, type=int)
    option(parser, "--rate", RATE, "1gbit")
    option(parser, "--layers", "dense layers, of 3 MiB of state each", 16, type=int)
    option(parser, "--strategies", "names of builders", STRATEGIES, nargs="+")
    option(parser, "--rounds", "turns of each kind of call", 10, type=int)
    option(parser, "--json", JSON)
    given = parser.parse_args()
    results = _results(given.hosts, given.rate, given.strategies, given.layers, given.rounds)
    print(json.dumps(results) if given.json else table(results))


def _results(hosts: int, rate: str, strategies: Sequence[str], layers: int, rounds: int) -> dict[str, Times]:
    if hosts == 1:
        from autodist_core.resource_spec import ResourceSpec

        return {name: measure(ResourceSpec.local(cpus=2), name, layers, rounds) for name in strategies}
    if missing():
        sys.exit(f"{missing()}.")
    with network(hosts, rate) as made:
        return {name: measure(made.spec(), name, layers, rounds) for name in strategies}


if __name__ == "__main__":
    main()
