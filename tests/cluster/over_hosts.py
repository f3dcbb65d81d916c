"""Training reference models over the hosts of a test network, with one set of agents for many trainings."""

from __future__ import annotations

from autodist_keras import DistributedModel
from tests.support.compare import Trained
from tests.support.models import Data, ReferenceModel
from tests.support.strategies import strategy_named
from tests.support.training import fit, run, seeded
from tests.support.waiting import comes_true


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
