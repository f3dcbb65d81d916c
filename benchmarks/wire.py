"""Watch the links of the hosts during steps: when the first gradient leaves, how busy the link is, what comes after it.

    python benchmarks/wire.py [--models mlp cnn] [--hosts 2] [--rate 1gbit] [--steps 24] [--strategy PS] [--bf16]

One training runs alone over the hosts of the test network (`hosts.py`). About a thousand times a second, a thread reads
how many bytes each host has sent. The interface counts a packet when it has passed the limit of the rate, so these are
bytes on the wire, with the headers of their packets. The times of the steps come from the training itself.

A step has three parts. `before` ends when the first 64 KiB have left a host: the forward pass, and the backward pass
of the first bucket. `wire` ends when all but the last 64 KiB have left. `after` is the rest: the last sums, the update,
and the way back to the program. `busy` is the share of the link's rate that is used in `wire`. The last line shows the
share in each twentieth of a step. All are medians over the steps, of the host that sends most.

The line `= until full` parts the same step in another way, for an all-reduce. The time of the bytes is that of what
the strategy sends, at the rate that TCP gets. The time until the link is full is what is left of the step without these
bytes and `after`. Without `--strategy` these are the gradients. With `--strategy AllReduce` they are the factors of
dense kernels, and the other gradients.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from bounds import bits_per_second, wire_alone
from contenders import BFLOAT16, CONTENDERS, GRADIENTS, OVER_HOSTS, distributed
from hosts import network, wires
from options import RATE, command, option
from turns import Job, Training, Turns
from workloads import WORKLOADS

from tests.network.lan import missing

_EDGE = 64 * 1024
"""The bytes at the beginning and at the end of a step that are taken for its calls, and not for gradients."""
_PERIOD = 0.001
_TCP = 0.957
"""The share of the rate that TCP gets here (`iperf3`, one connection); the rest is the headers of packets."""
_SHARES = 20


class StepTimes(Turns):
    """Sends the beginning and the end of each step of the last epoch, when the training has ended."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(0)
        self._turns = turns

    def callback(self, keras: Any) -> Any:
        """A callback for `fit` that takes the times."""
        turns = self._turns

        class Times(keras.callbacks.Callback):  # type: ignore[misc]
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                self.times: list[tuple[float, float]] = []

            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                self.began = time.monotonic()

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                self.times.append((self.began, time.monotonic()))

            def on_train_end(self, logs: Any = None) -> None:
                turns.send(self.times)

        return Times()


@dataclass
class Samples:
    """How many bytes one host had sent at some moments."""

    times: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    def at(self, moment: float) -> float:
        """The bytes sent until a moment, between two samples in proportion.

        >>> Samples([0.0, 1.0], [0, 100]).at(0.25)
        25.0
        """
        after = min(max(bisect_right(self.times, moment), 1), len(self.times) - 1)
        (start, end), (low, high) = self.times[after - 1 : after + 1], self.sent[after - 1 : after + 1]
        return low + (high - low) * min(max((moment - start) / (end - start), 0), 1)

    def when(self, sent: float) -> float:
        """The moment of the first sample at which so many bytes had been sent.

        >>> Samples([0.0, 1.0, 2.0], [0, 100, 150]).when(120)
        2.0
        """
        return self.times[min(bisect_left(self.sent, sent), len(self.times) - 1)]


class Sampler:
    """Reads the bytes that hosts have sent, about a thousand times a second, in a thread, from `with` to its end."""

    def __init__(self, hosts: Sequence[Any]) -> None:
        self._counters = [(Path(f"/proc/{host.pid}/net/dev"), f"{host.interface}:") for host in hosts]
        self.samples = [Samples() for _ in hosts]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -15)  # the trainings take all processors
        while not self._over.wait(_PERIOD):
            for samples, (file, name) in zip(self.samples, self._counters, strict=True):
                counted = int(file.read_text().partition(name)[2].split()[8])
                samples.times.append(time.monotonic())
                samples.sent.append(counted)


@dataclass(frozen=True)
class Step:
    """What one host sent in one step; seconds.

    >>> samples = Samples([0.0, 0.1, 0.2, 0.3, 0.4], [0, 0, 10**7, 2 * 10**7, 2 * 10**7])
    >>> step = Step.of(0.0, 0.4, samples, rate=1e9)
    >>> [round(value, 2) for value in (step.before, step.wire, step.after, step.busy)]
    [0.2, 0.1, 0.1, 1.6]
    """

    before: float
    wire: float
    after: float
    sent: float
    """In bytes."""
    busy: float
    shares: tuple[float, ...]

    @classmethod
    def of(cls, began: float, ended: float, samples: Samples, rate: float) -> Step:
        """The step between two moments, on a link of some bits per second."""
        start, end = samples.at(began), samples.at(ended)
        first, last = samples.when(start + _EDGE), samples.when(end - _EDGE)
        width = (ended - began) / _SHARES
        levels = [samples.at(began + width * number) for number in range(_SHARES + 1)]
        shares = tuple(8 * (high - low) / width / rate for low, high in pairwise(levels))
        wire = max(last - first, 1e-9)
        return cls(first - began, wire, ended - last, end - start, 8 * (end - start) / wire / rate, shares)


def watched(made: Any, workload: str, steps: int, contender: str, **settings: Any) -> tuple[list[Any], list[Samples]]:
    """Train over the hosts; return the times of the steps, and the samples of each host."""
    train = partial(distributed, **settings) if contender == OVER_HOSTS else CONTENDERS[contender]
    with Sampler(made.hosts) as sampler:
        training = Training(OVER_HOSTS, partial(_train, train), Job(workload, steps, 0, made.spec()))
        times = training.wait_until_ready()
        training.end()
    return times, sampler.samples


def _train(train: Any, job: Job, turns: Turns) -> None:
    train(job, StepTimes(turns))


def block(workload: str, steps: Sequence[Step], size: float, bound: float) -> str:
    """The lines of one model.

    >>> step = Step(0.01, 0.05, 0.01, 5_000_000, 0.8, (0.0, 1.0))
    >>> print(*block("mlp", [step], size=4_000_000, bound=40.0).splitlines()[1:3], sep="\\n")
      step  70.0 ms = before  10.0 + wire  50.0 + after  10.0; wire 80 % busy, 5.0 MB sent, 4.0 of values alone
                    = until full  18.2 + bytes at TCP's rate  41.8 + after  10.0
    """
    before, wire, after = (median(getattr(step, part) for step in steps) * 1e3 for part in ("before", "wire", "after"))
    whole = median(step.before + step.wire + step.after for step in steps) * 1e3
    busy, sent = median(step.busy for step in steps), median(step.sent for step in steps)
    shares = " ".join(f"{100 * median(values):.0f}" for values in zip(*(step.shares for step in steps), strict=True))
    return "\n".join((
        f"{workload}: {WORKLOADS[workload].title}; wire alone {bound:.1f} ms",
        f"  step {whole:5.1f} ms = before {before:5.1f} + wire {wire:5.1f} + after {after:5.1f}; "
        f"wire {100 * busy:.0f} % busy, {sent / 1e6:.1f} MB sent, {size / 1e6:.1f} of values alone",
        f"                = until full {whole - bound / _TCP - after:5.1f} + bytes at TCP's rate {bound / _TCP:5.1f} "
        f"+ after {after:5.1f}",
        f"  the link in each twentieth, %: {shares}",
    ))  # fmt: skip


def main() -> None:
    """Watch each model and print its block."""
    parser = command(__doc__)
    option(parser, "--models", "some of the models", ["mlp", "cnn"], nargs="+", choices=WORKLOADS)
    option(parser, "--hosts", "the number of hosts", 2, type=int)
    option(parser, "--rate", RATE, "1gbit")
    option(parser, "--steps", "the steps that are watched", 24, type=int)
    option(parser, "--strategy", "the name of a builder", None, said="AllReduce(factor_rows=0)")
    option(parser, "--bf16", "gradients travel as bfloat16, with error feedback")
    given = parser.parse_args()
    if missing():
        parser.exit(1, f"{missing()}.\n")
    contender = BFLOAT16 if given.bf16 else OVER_HOSTS if given.strategy else GRADIENTS
    rate = bits_per_second(given.rate)
    for name in given.models:
        with network(given.hosts, given.rate) as made:
            times, hosts = watched(made, name, given.steps, contender, strategy=given.strategy)
        found = [max((Step.of(*each, host, rate) for host in hosts), key=lambda step: step.sent) for each in times]
        size = wires(name, given.hosts, given.strategy)[contender]
        print(block(name, found, size, wire_alone(size, rate)), flush=True)


if __name__ == "__main__":
    main()
