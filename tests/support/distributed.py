"""Training reference models through the package, on CPU replicas of this process."""

from __future__ import annotations

from autodist_core import ResourceSpec
from autodist_core.strategy import (
    PS,
    AllReduce,
    Parallax,
    PartitionedAR,
    PartitionedPS,
    PSLoadBalancing,
    RandomAxisPartitionAR,
    StrategyBuilder,
    UnevenPartitionedPS,
)
from autodist_keras import DistributedModel
from tests.support.compare import Trained
from tests.support.models import Data, ReferenceModel
from tests.support.strategies import Alternating, EveryAxis, Mixed
from tests.support.training import fit, seeded, trained

BUILDERS = {
    "AllReduce": AllReduce, "PS": PS, "PSLoadBalancing": PSLoadBalancing, "Parallax": Parallax,
    "PartitionedPS": PartitionedPS, "UnevenPartitionedPS": UnevenPartitionedPS, "PartitionedAR": PartitionedAR,
    "RandomAxisPartitionAR": RandomAxisPartitionAR,
}  # fmt: skip
HAND_WRITTEN = {"Alternating": Alternating, "Mixed": Mixed, "EveryAxis": EveryAxis}


def builder_named(name: str | StrategyBuilder) -> StrategyBuilder:
    """A builder of the package, or a hand-written one; a builder itself is as good."""
    return (BUILDERS | HAND_WRITTEN)[name]() if isinstance(name, str) else name


def distributed(model, *, replicas: int = 2, **arguments) -> DistributedModel:
    """The model on so many logical CPUs; every replica has a memory of its own unless told otherwise."""
    return DistributedModel(model, ResourceSpec.local(cpus=replicas), **{"share_memory": False, **arguments})


def train_distributed(
    reference: ReferenceModel,
    optimizer: str,
    *,
    builder: str | StrategyBuilder = "AllReduce",
    replicas: int = 2,
    share_memory: bool | None = False,
    data: Data | None = None,
    **overrides,
) -> Trained:
    """Distributed training that `train_plain` with the same arguments is the expectation of.

    A model that wants arguments of its own in `compile` is compiled before it is wrapped, all others after.
    """
    model = seeded(reference.build)
    arguments = reference.compile_arguments(optimizer)
    strategy = builder_named(builder)
    if reference.second_optimizer:
        model.compile(**arguments)
        wrapper = distributed(model, replicas=replicas, share_memory=share_memory, strategy=strategy)
    else:
        wrapper = distributed(model, replicas=replicas, share_memory=share_memory)
        wrapper.compile(**arguments, strategy=strategy)
    with wrapper:
        history = fit(wrapper, data or reference.data(), **overrides)
        return trained(model, history, reference.optimizers(model))
