"""Measure milliseconds per step on one machine: plain Keras, one replica, two replicas and MirroredStrategy.

    python benchmarks/one_machine.py [--models cnn mlp] [--more] [--xla] [--rounds 12] [--steps N]
                                     [--json] [--check] [--quick]

These are the four contenders. MirroredStrategy is TensorFlow's, with two replicas. All contenders train the same model
on the same random data with the same global batch, on the CPU and without XLA; with `--xla` the first three also train
with `jit_compile=True`. They use TensorFlow's defaults for threads and graph optimization.

The contenders take turns of a few steps each, in another order in every round. So other work of the machine slows all
of them alike. A ratio is computed from two times of the same round. The table has the median and the quartiles of the
ratios of all rounds.

Each contender has a process of its own, so that no contender finds memory, threads or devices as another one left them.
MirroredStrategy also needs the CPU divided into two devices before TensorFlow starts. One process trains at a time.
"""

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the processor

from contenders import CONTENDERS, MIRRORED, MORE, ONE, PLAIN, TWO, XLA
from figures import Times, quartiles, ratio
from options import JSON, command, option
from turns import Job, Training, in_turns
from workloads import BATCH, OVERHEAD, STEPS, WORKLOADS

NOISE = 1.05  # one replica misses its target if its ratio to plain Keras is above this, and the lower quartile above 1
BOUND = 1.2  # the largest ratio of two replicas to plain Keras
MOST = 1.0  # the most milliseconds by which a step of the one-layer model may be longer than that of plain Keras

FOUR = (PLAIN, ONE, TWO, MIRRORED)


def measure(workload: str, steps: int, rounds: int, contenders: Sequence[str] = FOUR) -> dict[str, list[float]]:
    """Run the rounds of one model and return the milliseconds per step of each contender in each round."""
    job = Job(workload, steps, rounds)
    return in_turns([Training(contender, CONTENDERS[contender], job) for contender in contenders], rounds)


def overhead(times: Times, contender: str) -> float:
    """Return the median, over rounds, of the milliseconds by which a step is longer than that of plain Keras.

    >>> overhead({"one": [1.5, 1.25, 2.0], "plain": [1.0, 1.0, 1.0]}, "one")
    0.5
    """
    return statistics.median(a - b for a, b in zip(times[contender], times[PLAIN], strict=True))


def missed(results: Mapping[str, Times]) -> list[str]:
    """Return a sentence for each target that was missed."""
    found = []
    for name, times in results.items():
        low, one, _ = ratio(times, ONE, PLAIN)
        two, mirrored = ratio(times, TWO, PLAIN)[1], ratio(times, MIRRORED, TWO)[1]
        if name == OVERHEAD:
            found += [
                f"{name}: {contender} adds {overhead(times, contender):.2f} ms to a step (at most {MOST})"
                for contender in (ONE, TWO) if overhead(times, contender) > MOST
            ]
            continue
        if one > NOISE and low > 1:
            found.append(f"{name}: one replica takes {one:.2f} of plain Keras (at most {NOISE})")
        if two > BOUND:
            found.append(f"{name}: two replicas take {two:.2f} of plain Keras (at most {BOUND})")
        floor = WORKLOADS[name].floor
        if mirrored < floor:
            found.append(f"{name}: two replicas are {mirrored:.2f} times as fast as Mirrored (at least {floor})")
    return found


def table(results: Mapping[str, Times]) -> str:
    """Return the results as a table, with a block for each model."""
    lines = [f"{'':<12}{'ms per step':>12}{'quartiles':>18}{'of plain':>10}{'quartiles':>14}{'Mirrored / it':>15}"]
    for name, times in results.items():
        lines += ["", f"{name}: {WORKLOADS[name].title}"]
        for contender in times:
            low, middle, high = quartiles(times[contender])
            part_low, part, part_high = ratio(times, contender, PLAIN)
            lines.append(
                f"  {contender:<10}{middle:>12.2f}{f'{low:.2f} .. {high:.2f}':>18}{part:>10.2f}"
                f"{f'{part_low:.2f} .. {part_high:.2f}':>14}{ratio(times, MIRRORED, contender)[1]:>15.2f}"
            )
        if name == OVERHEAD:
            added = (f"{contender} {overhead(times, contender):+.2f} ms" for contender in times if contender != PLAIN)
            lines.append(f"  longer than plain: {', '.join(added)}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the results, and return the exit code."""
    parser = command(__doc__)
    option(parser, "--models", "some of the models", list(WORKLOADS), nargs="+", choices=WORKLOADS)
    option(parser, "--more", "also two replicas with Keras's own updates, and without shared memory")
    option(parser, "--xla", "also plain Keras, one replica and two replicas with jit_compile=True")
    option(parser, "--rounds", "turns of each contender", 12, type=int)
    option(parser, "--steps", "steps of each turn", None, said=STEPS, type=int)
    option(parser, "--quick", "run one turn of two steps only")
    option(parser, "--json", JSON)
    option(parser, "--check", "exit with 1 if a target is missed")
    options = parser.parse_args(arguments)
    rounds, steps = (1, 2) if options.quick else (options.rounds, options.steps)
    if rounds < 1 or (steps is not None and steps < 1):
        parser.error("--rounds and --steps take numbers from 1 on")

    results = {}
    for name in options.models:
        print(f"{name} ...", file=sys.stderr, flush=True)
        contenders = FOUR + MORE * options.more + XLA * options.xla
        results[name] = measure(name, steps or WORKLOADS[name].steps, rounds, contenders)
    targets = missed(results)
    if options.json:
        print(json.dumps({"batch": BATCH, "times": results, "missed": targets}))
    else:
        print(f"global batch {BATCH}, {os.cpu_count()} cores, {rounds} rounds\n{table(results)}")
    for target in targets:
        print(f"missed: {target}", file=sys.stderr)
    return 1 if options.check and targets else 0


if __name__ == "__main__":
    sys.exit(main())
