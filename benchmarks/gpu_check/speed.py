"""Part "speed": this project beside plain Keras and MirroredStrategy on the same card, in turns in one run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from contenders import MIRRORED, ONE, ONE_XLA, PLAIN, PLAIN_XLA, TWO, TWO_XLA, distributed, mirrored, plain
from figures import ratio
from turns import Job, Training, Turns, in_turns
from workloads import workload

from gpu_check.device import Device
from gpu_check.findings import Findings, require

ALL = (PLAIN, PLAIN_XLA, ONE, ONE_XLA, TWO, TWO_XLA, MIRRORED)
CONTENDERS = {
    "small_mlp": ALL, "tables": ALL, "transformer_100m": (PLAIN, PLAIN_XLA, ONE, ONE_XLA, TWO_XLA, MIRRORED),
    "resnet50_bfloat16": (PLAIN, PLAIN_XLA, ONE, ONE_XLA, TWO_XLA, MIRRORED),
    "resnet50": (PLAIN_XLA, ONE_XLA, TWO_XLA),  # all are on the card together, and each takes much of its memory
}  # fmt: skip
"""The contenders of each model on a card."""
ON_CPUS = {"one_layer": ALL, "tables": ALL, "transformer": ALL, "resnet": ALL}
MOST = {ONE: 1.03, TWO: 1.1}
"""The most that one replica, and two on one card, may take of the better plain Keras."""
MOST_OF_SMALL = 1.2
"""The same for one replica of a model whose step is Python's overhead."""


def run(device: Device) -> None:
    """The median time of a step for each contender of each model."""
    found, chosen = Findings("speed"), CONTENDERS if device.is_gpu else ON_CPUS
    if device.tiny:
        chosen = {"one_layer": (PLAIN, ONE, TWO, MIRRORED)}
    for name in chosen:
        found.check(name, lambda name=name: _measured(device, name, chosen[name]))


def _measured(device: Device, name: str, contenders: Sequence[str]) -> Mapping[str, Any]:
    rounds, steps = (1, 2) if device.tiny else (8, workload(name).steps)
    job = Job(name, steps, rounds)
    times = in_turns([Training(each, partial(train, each, device), job) for each in contenders], rounds)
    better = min((PLAIN, PLAIN_XLA), key=lambda each: median(times.get(each, [float("inf")])))
    figures: dict[str, Any] = {f"{each} ms": median(times[each]) for each in contenders}
    for mine, others in ((ONE, (ONE, ONE_XLA)), (TWO, (TWO, TWO_XLA))):
        figures[f"{mine} / plain"] = min(ratio(times, each, better)[1] for each in others if each in times)
    if not device.is_gpu:
        return figures  # a processor has goals of its own: make bench
    most = MOST | {ONE: MOST_OF_SMALL} if name == "small_mlp" else MOST
    missed = [f"{each} takes more than {most[each]}" for each in most if figures[f"{each} / plain"] > most[each]]
    return require(not missed, "; ".join(missed), figures)


def train(contender: str, device: Device, job: Job, turns: Turns) -> None:
    """Train one contender, in a process of its own."""
    replicas = 2 if contender in (TWO, TWO_XLA, MIRRORED) else 1
    xla = contender in (PLAIN_XLA, ONE_XLA, TWO_XLA)
    device.set_up(parts=replicas)
    if contender in (PLAIN, PLAIN_XLA):
        plain(job, turns, xla)
    elif contender == MIRRORED:
        mirrored(job, turns, device.names(2))
    else:
        distributed(replace(job, spec=device.spec(replicas)), turns, xla=xla)
