"""Training reference models over the hosts of a test network, with one set of agents for many trainings."""

from __future__ import annotations

from contextlib import nullcontext

import keras
import pytest

from autodist_keras import DistributedModel
from autodist_keras.callbacks import Resume
from tests.cluster import hurting
from tests.support.compare import Trained, assert_equally_trained
from tests.support.ended import Killed, kill
from tests.support.models import Data, ReferenceModel
from tests.support.strategies import strategy_named
from tests.support.training import SEED, fit, run, seeded, train_plain, trained
from tests.support.waiting import comes_true

LONG_TRAININGS = [
    pytest.mark.usefixtures("float64", "known_hosts"), pytest.mark.long,
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
]  # fmt: skip
"""The marks of a file of long tests that train over hosts."""

HERE = {"nodes": [{"address": "localhost", "cpus": [0, 1]}]}
"""Two replicas of the test's own process."""


class OverHosts:
    """A reference model over hosts: every training starts from the same weights, and the agents stay."""

    def __init__(self, reference: ReferenceModel, spec, **settings) -> None:
        self.reference = reference
        self.model = seeded(reference.build)
        self.front = DistributedModel(self.model, spec, **settings)
        self._weights = self.model.get_weights()

    def __enter__(self) -> OverHosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.front.close()

    def compile(self, optimizer: str, builder, **settings) -> None:
        """Begin anew."""
        self.model.set_weights(self._weights)
        self.front.compile(
            **{**self.reference.compile_arguments(optimizer), **settings}, strategy=strategy_named(builder)
        )

    def train(self, optimizer: str, builder, data: Data | None = None, **options) -> Trained:
        """One training from the start, and what it left."""
        self.compile(optimizer, builder)
        data = data or self.reference.data()
        return run(lambda front, model: fit(front, data, **options), self.front, self.model)


def assert_equal_over_a_pair(network, reference: ReferenceModel, *programs, built: bool = True) -> None:
    """A strategy that splits variables, and one with a server, on two hosts of which one has two replicas."""
    expected = [train_plain(reference, program, built=built) for program in programs]
    with OverHosts(reference, network.pair(1, 2)) as hosts:
        for builder in ("PartitionedAR", "PS"):
            for program, outcome in zip(programs, expected, strict=True):
                hosts.compile("adam", builder)
                assert_equally_trained(outcome, run(program, hosts.front, hosts.model))
    assert nothing_left(network) == []


def part(build, spec, folder, train, ends: int | None = None):
    """One program's part of a training that `Resume` saves, up to a step or to the end: the model, and the plan."""
    model = seeded(build)
    callbacks = [Resume(folder, every=1), *([] if ends is None else [kill(ends)])]
    keras.utils.set_random_seed(SEED)
    with DistributedModel(model, spec, "PS") as front:
        with nullcontext() if ends is None else pytest.raises(Killed):
            train(front, callbacks)
        return model, str(front.plan())


def parts(build, specs, folder, train, ends):
    """A training that ends before a step and goes on in another program: the model, and both plans."""
    _, before = part(build, specs[0], folder, train, ends)
    model, after = part(build, specs[1], folder, train)
    return model, before, after


def alone(build, train):
    """What one device makes of a training."""
    model = seeded(build)
    keras.utils.set_random_seed(SEED)
    train(model, [])
    return trained(model)


def losing(network, build, train, step: int):
    """A training of which host 1 loses its agents behind a step: what it made, and the plan."""
    model, killed = seeded(build), []

    def hurt(batch, logs):
        if model.optimizer.iterations.numpy() == step and not killed:
            killed.extend(hurting.kill(network.hosts[1]))

    with DistributedModel(model, network.pair(1, 2), "PS", on_failure="restart", lost_after=5.0) as front:
        keras.utils.set_random_seed(SEED)
        train(front, [keras.callbacks.LambdaCallback(on_train_batch_end=hurt)])
        plan = str(front.plan())
    assert killed
    return trained(model), plan


def sent_by(network, call):
    """The bytes that the chief has sent to other hosts during a call, and what the call returned."""
    before = network.hosts[0].sent_bytes()
    result = call()
    return network.hosts[0].sent_bytes() - before, result


def nothing_left(network, seconds: float = 20) -> list[str]:
    """What still runs or listens on the hosts some time after the last training ended."""
    comes_true(lambda: not _left(network), seconds)
    return _left(network)


def _left(network) -> list[str]:
    found = []
    for host in network.hosts[1:]:
        found += [f"{host.name}: {command}" for _, command in host.processes() if "sshd" not in command]
        found += [f"{host.name} listens on {port}" for port in host.listening() if port != 22]
    return found
