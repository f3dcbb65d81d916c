"""All benchmarks in one run: this project and its peers, on one machine and over hosts, in one table.

    python benchmarks/bench.py [--only one_machine hosts growth start memory large] [--models mlp cnn] [--rounds 8]
                               [--quick] [--out build/bench]

`make bench` runs it in an environment of its own, with the peers. It prints a line for each contender, and writes
`bench.json` with the times of all rounds and, if matplotlib is installed, `bench.svg` into `--out`.

A line has the median time of a step, that time divided by the bound of the step, and how many times as long as this
project the contender takes. The bound on one machine is plain Keras with the better of XLA on and off. Over hosts it is
the larger one of the arithmetic alone and of the wire alone for what the contender sends (`hosts.py`). The noise of a
block is how far the quartiles of plain Keras's times are apart, divided by their median: a difference that is smaller
says nothing.

The part `growth` builds the graph of a step over many replicas, without machines (`growth.py`). The part `start` is the
time from `fit` to the end of the first step. The part `memory` is the peak of resident memory (`memory.py`), and
`large` that of gathered weights beside their formula, and what they cost (`large.py`).
"""

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hosts
import one_machine
from contenders import (
    MIRRORED,
    MULTI_WORKER,
    ONE,
    ONE_XLA,
    OVER_HOSTS,
    PEERS,
    PLAIN,
    PLAIN_XLA,
    TORCH,
    TWO,
    TWO_XLA,
    first_step,
)
from figures import Times, noise, quartiles, ratio
from options import command, option
from turns import Job, Training
from workloads import OVERHEAD, WORKLOADS

from tests.network.lan import missing

PARTS = ("one_machine", "hosts", "growth", "start", "memory", "large")
NETWORKS = ((2, "1gbit"), (2, "250mbit"), (4, "1gbit"), (4, "250mbit"), (8, "1gbit"))
"""The hosts and the rates of the links."""
BUILT = (2, 8, 64, 512)
"""The replicas of the part `growth`, and `BUILT_CPUS` of them on each host."""
BUILT_CPUS = 8
BUILT_MODELS = ("mlp", "resnet")
BUILDERS = ("AllReduce", "PS", "PartitionedPS")
EVERYWHERE = ("mlp", "cnn")
"""The models that train on each network; the others train over two hosts at 1 Gbit/s."""
_WITHOUT = (OVERHEAD, "embeddings")
"""The models of `one_machine.py` that are not compared over hosts."""


@dataclass(frozen=True)
class Row:
    """The times of one contender.

    >>> Row("one machine", "mlp", "two", 30.0, 29.0, 31.0, 30.0, 1.0, 0.02).of_bound
    1.0
    """

    where: str
    model: str
    contender: str
    ms: float
    low: float
    high: float
    bound: float
    times_ours: float
    """The contender's time divided by this project's, as a median over the rounds."""
    noise: float

    @property
    def of_bound(self) -> float:
        """The time divided by the bound."""
        return self.ms / self.bound


def rows(where: str, model: str, times: Times, ours: str, bounds: Mapping[str, float]) -> list[Row]:
    """The rows of one block.

    >>> rows("one machine", "mlp", {"plain": [2.0], "two": [3.0]}, "two", {"plain": 2.0, "two": 2.0})[1].of_bound
    1.5
    """
    found = []
    for contender in times:
        low, middle, high = quartiles(times[contender])
        of_ours = ratio(times, contender, ours)[1]
        found.append(
            Row(where, model, contender, middle, low, high, bounds[contender], of_ours, noise(times[PLAIN]))
        )  # fmt: skip
    return found


def on_one_machine(models: Sequence[str], rounds: int, steps: int | None) -> Iterator[tuple[list[Row], Times]]:
    """Measure each model on this machine."""
    for model in models:
        contenders = (PLAIN, PLAIN_XLA, ONE, ONE_XLA, TWO, TWO_XLA, MIRRORED)
        times = one_machine.measure(model, steps or WORKLOADS[model].steps, rounds, contenders)
        bound = min(median(times[PLAIN]), median(times[PLAIN_XLA]))
        yield rows("one machine", model, times, TWO, dict.fromkeys(contenders, bound)), times


def over_hosts(models: Sequence[str], rounds: int, steps: int | None) -> Iterator[tuple[list[Row], Times]]:
    """Measure each model over hosts of the test network."""
    for count, rate in NETWORKS:
        here = [model for model in models if model in EVERYWHERE or (count, rate) == NETWORKS[0]]
        if not here:
            continue
        # The processes of the peers need memory on each host, and those of servers most.
        peers = [each for each in PEERS[: 3 if count == 2 else 1] if each != TORCH or find_spec("torch")]
        with hosts.network(count, rate) as made:
            for model in here:
                sent = hosts.wires(model, count, None)
                contenders = hosts.chosen(model, peers if count <= 4 else [], True, sent)
                times = hosts.measure(made, model, contenders, steps or WORKLOADS[model].steps, rounds)
                yield rows(f"{count} hosts, {rate}", model, times, OVER_HOSTS, hosts.bounds(times, sent, rate)), times


def start_up(count: int) -> float:
    """Return the seconds from `fit` to the end of the first step over hosts, with their TensorFlow not yet started."""
    with hosts.network(count, "1gbit") as made:
        training = Training("start", first_step, Job("mlp", steps=1, rounds=1, spec=made.spec()))
        seconds = training.wait_until_ready()
        training.end()
        return seconds


@dataclass(frozen=True)
class Built:
    """What building and importing the graph of one step took, in seconds of the processor.

    >>> Built("mlp", "PS", 64, 0.88, 1.3, 2.1, 1.5).replicas
    64
    """

    model: str
    strategy: str
    replicas: int
    seconds: float
    megabytes: float
    times_first: float
    """The seconds divided by those of the fewest replicas."""
    times_first_bytes: float

    def __str__(self) -> str:
        return (
            f"{self.model}, {self.strategy}: {self.replicas} replicas built in {self.seconds:.2f} s "
            f"({self.times_first:.1f} times), {self.megabytes:.2f} MB ({self.times_first_bytes:.1f} times)"
        )


def growth(models: Sequence[str], repeat: int) -> Iterator[Built]:
    """Build and import the graph of a step over more and more replicas; the fastest of some repetitions."""
    from growth import captured, measured

    for model in models:
        item = captured(model)
        for builder in BUILDERS:
            first = None
            for replicas in BUILT:
                every = [measured(item, builder, replicas, BUILT_CPUS) for _ in range(repeat)]
                found = min(every, key=lambda each: each.total)
                first = first or found
                ratios = found.total / first.total, found.size / first.size
                yield Built(model, builder, replicas, found.total, found.size / 1e6, *ratios)


def in_memory(result: dict[str, Any], quick: bool) -> None:
    """Measure the memory, and put it into the result."""
    import memory

    result["memory"] = {"forecast": {}, "contenders": []}
    for name, peak, said in memory.forecasts(["tables"] if quick else list(memory.MODELS)):
        print(f"memory of {name}: {peak:.0f} MiB above idle, {said / peak:.2f} of it foretold", flush=True)
        result["memory"]["forecast"][name] = peak, said
    counts = () if quick else (2, 4)
    for each in memory.contenders("mlp", counts, memory.BUILDERS, [MULTI_WORKER, TORCH]):
        print(memory.row(*each), flush=True)
        result["memory"]["contenders"].append(each)


def text(found: Sequence[Row]) -> str:
    """The rows of a block as lines.

    >>> print(text([Row("one machine", "mlp", "two", 30.0, 29.0, 31.0, 20.0, 1.0, 0.02)]).splitlines()[1].split())
    ['two', '30.0', '29.0', '..', '31.0', '1.50', '1.00']
    """
    first = found[0]
    lines = [f"{first.where}, {first.model}: {WORKLOADS[first.model].title}; noise {first.noise:.0%}"]
    lines += [
        f"  {row.contender:<17}{row.ms:>9.1f}{f'{row.low:.1f} .. {row.high:.1f}':>18}{row.of_bound:>10.2f}"
        f"{row.times_ours:>10.2f}"
        for row in found
    ]
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """The versions of what was compared."""
    found = {"python": platform.python_version()}
    for name in ("tensorflow", "keras", "tf_keras", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def main() -> None:
    """Measure, print and write."""
    os.environ.setdefault("AUTODIST_LOG", "error")  # not on import: tests import this module
    parser = command(__doc__)
    option(parser, "--only", "some of the parts", PARTS, nargs="+", choices=PARTS)
    option(parser, "--models", "some of the models", list(WORKLOADS), nargs="+", choices=WORKLOADS)
    option(parser, "--rounds", "turns of each contender", 8, type=int)
    option(parser, "--quick", "one turn of two steps each, to see that it runs")
    option(parser, "--out", "the folder of bench.json and bench.svg", Path("build/bench"), type=Path)
    given = parser.parse_args()
    rounds, steps = (1, 2) if given.quick else (given.rounds, None)
    if not {"one_machine", "growth", "memory"} & {*given.only} and missing():
        parser.exit(1, f"{missing()}.\n")
    given.out.mkdir(parents=True, exist_ok=True)
    found: list[Row] = []
    result = {"date": date.today().isoformat(), "cores": os.cpu_count(), "rounds": rounds, "versions": versions()}
    result |= {"rows": [], "times": [], "growth": [], "start": {}, "large": []}

    def keep(blocks: Iterator[tuple[list[Row], Times]]) -> None:
        for block, times in blocks:
            print(text(block), flush=True)
            found.extend(block)
            result["rows"] += [asdict(row) | {"of_bound": row.of_bound} for row in block]
            result["times"].append({"where": block[0].where, "model": block[0].model, "ms": times})
            (given.out / "bench.json").write_text(json.dumps(result, indent=1))

    print(f"{'':19}{'ms a step':>9}{'quartiles':>18}{'of bound':>10}{'of ours':>10}", flush=True)
    if "one_machine" in given.only:
        keep(on_one_machine(given.models, rounds, steps))
    if "hosts" in given.only:
        if missing():
            print(f"over hosts: left out, {missing()}", file=sys.stderr)
        else:
            keep(over_hosts([model for model in given.models if model not in _WITHOUT], rounds, steps))
    if "growth" in given.only:
        for built in growth([each for each in BUILT_MODELS if each in given.models], 1 if given.quick else 5):
            print(built, flush=True)
            result["growth"].append(asdict(built))
    if "start" in given.only and not missing():
        for count in (2,) if given.quick else (2, 4, 8, 16):
            result["start"][count] = start_up(count)
            print(f"{count} hosts: {result['start'][count]:.1f} s from fit to the end of the first step", flush=True)
    if "memory" in given.only:
        in_memory(result, given.quick)
    if "large" in given.only and not missing():
        import large

        counts, rates = ([2], ["40gbit"]) if given.quick else ([2, 4, 8], large.RATES)
        for part, measured, said in large.measured(("formula", "time"), counts, rates, rounds):
            print(f"{part}: {said}", flush=True)
            result["large"].append((part, measured))
    (given.out / "bench.json").write_text(json.dumps(result, indent=1))
    if (found or result["growth"]) and find_spec("matplotlib"):
        import picture

        picture.draw(result, given.out / "bench.svg")
    print(f"written to {given.out}/")


if __name__ == "__main__":
    main()
