"""What a prediction knows of a model and of a cluster, and what it takes where nothing was measured.

In: a GraphItem and a ResourceSpec, or what somebody measured. Out: a `ModelProfile` and a `ClusterProfile`, which
`charges` and `prediction` read. All defaults are here, each with where it comes from. The links of `cluster.yml` are
taken from `cluster.profile.json` beside it, which `autodist doctor --profile` writes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

from autodist_core.errors import StrategyError
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.factor_rows import FLOPS

EXAMPLES = 32
"""The examples of a batch where none is known: as many as Keras's `fit` takes by itself."""
GPU_FLOPS = 1e13
"""Operations of a GPU in a second: half of what the data sheet of a card of 2022 says for float32."""
FORWARD = 1 / 3
"""The share of the forward pass in compute, without a graph: the backward pass has two products for each of its."""
TCP = 0.957
"""The share of a link's rate that TCP gets: `iperf3`, one connection over a link of 1 Gbit/s."""
LATENCY = 5e-4
"""Seconds of one message: an all-reduce of a few bytes between two machines, which are two messages, took 1 ms."""
GPU_LATENCY = 1e-5
"""Seconds of one hop in a ring of GPUs over the network: NCCL's own model takes 9.6 to 14 microseconds."""
HANDLING = 0.65e-9
"""Seconds of a processor for each byte that a machine sends or gets: 10 MB through gRPC took 13 ms at both ends."""
PEER = 5.4e-4
"""Seconds of a processor for the messages of a step with one machine that it calls, that it serves or that serves it.

A step of one small layer, served by the chief, took 4.3 ms over two machines on two processors, and 9.7 over four."""
RING = 2.0
"""How many times as long a byte takes in a ring, where it is also added up.

12 dense layers over two processes of one machine, against the same bytes sent to owners and back."""
UPDATE, GPU_UPDATE = 2.7e-10, 1.3e-11
"""Seconds of an update for each byte of variables, of a processor and of a GPU.

Adam's kernel took 4.5 ms for 34 MB on two processors. A GPU's memory is taken to be ten times as fast as theirs."""
PROCESSORS = 2.0
"""The processors of a machine: as many as where these times were measured."""
BUS = 1e10
"""Bytes in a second between a GPU and the rest of its machine: about what PCI Express 3.0 carries with 16 lanes."""


@dataclass(frozen=True)
class StepTimes:
    """What was measured of a step of one replica on this machine, alone (`autodist_core/training/measured.py`).

    >>> StepTimes(32, compute=0.010, update=0.001).compute
    0.01
    """

    examples: int
    compute: float
    """Seconds of all but the update."""
    update: float
    """Seconds of the update."""
    ends: Mapping[str, float] = field(default_factory=dict)
    """For each operation of compute, the share of compute's time that had gone by when it ended."""


@dataclass(frozen=True)
class ModelProfile:
    """What is known of one training step of a model.

    >>> from autodist_core.step.graph_item import Variable
    >>> dense = [Variable(f"dense{number}/kernel", (300, 100), "float32") for number in range(2)]
    >>> profile = ModelProfile.assumed(GraphItem((*dense, Variable("table", (50, 8), "float32", is_sparse=True))))
    >>> profile.operations, {name: round(share, 2) for name, share in profile.ready.items()}
    (360016.0, {'dense0/kernel': 1.0, 'dense1/kernel': 0.67, 'table': 0.33})
    >>> profile.rows, profile.factors["dense0/kernel"]
    ({'table': 1.0}, 1600)
    """

    operations: float
    """Floating-point operations of the forward and backward pass for one example."""
    ready: Mapping[str, float]
    """For each trained variable, the share of these operations after which its gradient is there."""
    rows: Mapping[str, float] = field(default_factory=dict)
    """For each table, the rows that an example looks up."""
    factors: Mapping[str, int] = field(default_factory=dict)
    """For each kernel whose gradient is a product of two factors that can travel, their bytes for one example."""
    times: Mapping[str, int] = field(default_factory=dict)
    """How often a step applies the gradient of a variable, where that is not once."""
    slots: frozenset[str] = frozenset()
    """The tables that have variables of the optimizer as large: their updates change all rows."""
    seen: bool = False
    """Whether this was read from a captured step."""

    @staticmethod
    def assumed(item: GraphItem) -> ModelProfile:
        """What is taken of a model without a captured step: layers in the order of their variables, a row for each."""
        variables = list(item.trainable_var_op_to_var.values())
        work = {each.name: _operations(each.shape, each.is_sparse) for each in variables}
        total, left = sum(work.values()) or 1.0, 0.0
        ready = {}
        for each in reversed(variables):
            left += work[each.name]
            ready[each.name] = FORWARD + (1 - FORWARD) * left / total
        dense = [each for each in variables if len(each.shape) == 2 and not each.is_sparse]
        return ModelProfile(
            total, {each.name: ready[each.name] for each in variables},
            {each.name: 1.0 for each in variables if each.is_sparse},
            {each.name: sum(each.shape) * each.item_size for each in dense},
            Counter(gradient.variable for gradient in item.gradients), with_slots(item),
        )


def with_slots(item: GraphItem) -> frozenset[str]:
    """The sparse variables that have variables of the optimizer of the same shape.

    >>> from autodist_core.step.graph_item import Variable
    >>> table = Variable("table", (50, 8), "float32", is_sparse=True)
    >>> momentum = Variable("momentum", (50, 8), "float32", trainable=False, kind="optimizer")
    >>> with_slots(GraphItem((table, momentum))), with_slots(GraphItem((table,)))
    (frozenset({'table'}), frozenset())
    """
    shapes = {each.shape for each in item.variables if each.kind == "optimizer"}
    trained = item.trainable_var_op_to_var.items()
    return frozenset(name for name, each in trained if each.is_sparse and each.shape in shapes)


def _operations(shape: tuple[int, ...], is_sparse: bool) -> float:
    """The operations of a layer for an example: a product forward and two backward, or a row that is read and added."""
    return 2.0 * prod(shape[1:]) if is_sparse else 6.0 * prod(shape)


@dataclass(frozen=True)
class Machine:
    """What is known of one machine.

    >>> Machine("10.0.0.1", 2).operations == Machine("10.0.0.1", 1).operations / 2
    True
    """

    address: str
    replicas: int
    on_gpus: bool = False
    bandwidth: float = 1e9 * TCP / 8
    """Bytes in a second over its link, in each direction."""
    latency: float = LATENCY
    rate: float | None = None
    """Operations in a second of one replica, while all of the machine's compute; None: the default."""
    byte: float | None = None
    """Seconds of an update for each byte; None: the default."""
    processors: float = PROCESSORS
    """What updates and messages have; less than one where several hosts of a test share a machine."""

    @property
    def operations(self) -> float:
        """Operations in a second of one replica. The CPU devices of a machine share its processors."""
        return self.rate or (GPU_FLOPS if self.on_gpus else FLOPS / self.replicas)

    @property
    def update(self) -> float:
        """Seconds of an update of a replica's variables, for each byte."""
        return self.byte or (GPU_UPDATE if self.on_gpus else UPDATE / self.processors)


@dataclass(frozen=True)
class ClusterProfile:
    """What is known of the machines of a training, in the order of the resource spec.

    >>> spec = ResourceSpec({"nodes": [{"address": "10.0.0.1", "chief": True}, {"address": "10.0.0.2"}]})
    >>> ClusterProfile.assumed(spec).machines[1].bandwidth
    119625000.0
    >>> ClusterProfile.of(spec) == ClusterProfile.assumed(spec)  # no doctor has measured its links
    True
    """

    machines: tuple[Machine, ...]
    links_from: str = ""
    """The file with the measured links; empty if the cluster file states them."""

    @staticmethod
    def of(spec: ResourceSpec) -> ClusterProfile:
        """What is assumed, with the links and processors that the doctor has measured of these machines."""
        assumed, file = ClusterProfile.assumed(spec), file_beside(spec.source)
        if len(assumed.machines) < 2 or not file.is_file():
            return assumed
        try:
            found = json.loads(file.read_text())
            machines = tuple(_with_links(each, found) for each in assumed.machines)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StrategyError(
                f"{file}: the measured links of {spec.source} cannot be read from it ({type(error).__name__}: "
                f"{error}). Write it again: autodist doctor --profile {spec.source}. Or delete it."
            ) from error
        return ClusterProfile(machines, links_from=file.name)

    @staticmethod
    def assumed(spec: ResourceSpec) -> ClusterProfile:
        """Links of the bandwidth that the cluster file states, and machines of the usual rate."""
        counts = Counter(device.address for _, device in spec.replica_devices)
        on_gpus = {device.address for _, device in spec.replica_devices if device.kind == "GPU"}
        return ClusterProfile(tuple(
            Machine(
                node.address, counts[node.address], node.address in on_gpus, node.network_bandwidth * 1e9 / 8 * TCP
            ) for node in spec.nodes
        ))  # fmt: skip

    def timed(self, operations: float, byte: float, on_gpus: bool) -> ClusterProfile:
        """The same, where replicas of one kind take these operations in a second, and these seconds to update a byte.

        One replica was measured alone, and the CPU devices of a machine share its processors.
        """
        return replace(self, machines=tuple(
            replace(each, rate=operations if on_gpus else operations / each.replicas, byte=byte)
            if each.on_gpus == on_gpus else each for each in self.machines
        ))  # fmt: skip

    def faster(self, times: float) -> ClusterProfile:
        """The same with machines that compute so many times as fast."""
        return ClusterProfile(tuple(replace(each, rate=times * each.operations) for each in self.machines))


def file_beside(source: str) -> Path:
    """The file with what was measured of the machines of a cluster file.

    >>> file_beside("here/cluster.yml").name
    'cluster.profile.json'
    """
    return Path(source).with_suffix(".profile.json")


def _with_links(machine: Machine, found: Mapping[str, Any]) -> Machine:
    """A machine with its measured processors, the bandwidth of its fastest pair, and its usual latency."""
    (node,) = (each for each in found["nodes"] if each["address"] == machine.address)
    links = [each for each in found["pairs"] if machine.address in (each["source"], each["target"])]
    return replace(
        machine, bandwidth=max(each["gbits"] for each in links) * 1e9 / 8,
        latency=LATENCY + median(each["round_trip"] for each in links) / 2,
        processors=float(node["description"]["cpus"]),
    )
