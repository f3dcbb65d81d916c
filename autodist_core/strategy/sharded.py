"""Sharded: the replicas' own devices hold the variables in parts, and each runs the update of its parts.

A GraphItem and a ResourceSpec come in, and a Strategy goes out, as from every builder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import Any

from autodist_core.errors import StrategyError, amount
from autodist_core.resource_spec import DeviceSpec, ResourceSpec
from autodist_core.step.graph_item import GraphItem, Variable
from autodist_core.step.values import format_bytes
from autodist_core.strategy.builder import StrategyBuilder
from autodist_core.strategy.factor_rows import factor_rows_of_shards
from autodist_core.strategy.options import PSOptions, check_choice, check_integer, replica_devices, spread
from autodist_core.strategy.strategy import WIRE_DTYPES, Strategy
from autodist_core.strategy.synchronizers import PSPlan
from autodist_core.strategy.wire import wire


@dataclass(frozen=True)
class Sharded(StrategyBuilder):
    """Splits each variable in as many parts as there are replicas; each replica's own device is the owner of one part.

    The owner has the part of the optimizer's variables too. The axis that is split is the first one that the number of
    replicas divides, else the longest one; of a looked-up table it is the first one. A small variable stays whole.

    >>> shapes = {"kernel": (3, 3, 64, 100), "table": (5001, 4), "bias": (100,)}
    >>> item = GraphItem(tuple(Variable(*each, "float32", is_sparse="table" in each) for each in shapes.items()))
    >>> spec = ResourceSpec({"nodes": [{"address": "localhost", "gpus": [0, 1], "chief": True}]})
    >>> print(Sharded().build(item, spec))
    strategy ... @ 2 replicas
      replica localhost:GPU:0
      replica localhost:GPU:1
      kernel : split(axis=2, shards=2) ps(localhost:GPU:0, localhost:GPU:1)
      table  : split(axis=0, shards=2) ps(localhost:GPU:0, localhost:GPU:1)
      bias   : ps(localhost:GPU:1)
      note: 1 variable of at most 64.0 KiB (whole_bytes), or of short axes: whole, with one owner each
    >>> spec = ResourceSpec({"nodes": [{"address": "10.0.0.1", "chief": True}, {"address": "10.0.0.2"}]})
    >>> Sharded(shares={"10.0.0.1": 1, "10.0.0.2": 3}).build(item, spec).nodes[0].partitioner
    '1,1,1:3,1'
    >>> Sharded(weights="keep")
    Traceback (most recent call last):
    autodist_core.errors.StrategyError: Sharded(weights='keep'): unknown weights. Did you mean 'kept'? Known: kept,
        gathered.
    """

    weights: str | int = "kept"
    """``kept``: every replica has a mirror of all weights. ``gathered``: weights in parts have none, and each replica
    gathers them when it uses them, in the forward and in the backward pass. A number is like ``gathered``, but a
    replica keeps the weights that it uses again within so many uses of others: those of the last layers, of which half
    as many are kept."""
    whole_bytes: int = 1 << 16
    """Variables of at most so many bytes stay whole. They are spread over the replicas."""
    wire_dtype: str = ""
    """``float16`` or ``bfloat16``: gathered weights, and the gradients that go to their owners, travel in this type.
    The owners keep the weights, and add the gradients up, in the variable's own type."""

    factor_rows: int | None = None
    """Up to how many examples of a batch the factors of a dense kernel's gradient travel to the owners, and not the
    gradient. By default as many as pay; 0 is never."""

    shares: Mapping[str, int] | None = None
    """What each replica owns, in proportion to the others, by its machine or its device: ``{"10.0.0.1": 1, "10.0.0.2":
    3}`` where the second machine has more memory to give. By default all replicas own as much."""

    def __post_init__(self) -> None:
        """Refuse options that cannot be carried out."""
        if isinstance(self.weights, str):
            check_choice("Sharded", "weights", self.weights, ["kept", "gathered"])
        elif type(self.weights) is not int or self.weights < 1:
            raise StrategyError(
                f"Sharded(weights={self.weights!r}): weights is 'kept', 'gathered', or an integer from 1 on."
            )
        check_integer("Sharded", "whole_bytes", self.whole_bytes, 0)
        if self.factor_rows is not None:
            check_integer("Sharded", "factor_rows", self.factor_rows, 0)
        if not isinstance(self.shares, Mapping | None):
            raise StrategyError(
                f"Sharded(shares={self.shares!r}): shares is a dict of the machines' shares, such as {{'10.0.0.1': 1}}."
            )
        for address, share in (self.shares or {}).items():
            check_integer("Sharded", f"shares[{address!r}]", share, 1)
        if self.wire_dtype:
            check_choice("Sharded", "wire_dtype", self.wire_dtype, WIRE_DTYPES)
            if self.weights == "kept":
                raise StrategyError(
                    f"Sharded(wire_dtype={self.wire_dtype!r}): wire_dtype is for weights that are gathered; set "
                    "weights='gathered', or leave wire_dtype out."
                )

    def build(self, graph_item: GraphItem, resource_spec: ResourceSpec) -> Strategy:
        """Return the strategy for this model on these machines."""
        owners = replica_devices(resource_spec)
        again_within = self.weights if isinstance(self.weights, int) else 0
        how = {"gathered": self.weights != "kept", "again_within": again_within, "wire_dtype": self.wire_dtype}

        def of_shards(variable: Variable, axis: int) -> dict[str, Any]:
            sent = wire(PSPlan((), wire_dtype=self.wire_dtype), variable.shape, variable.dtype).bytes
            return how | {"factor_rows": factor_rows_of_shards(self.factor_rows, variable, axis, sent, resource_spec)}

        shares = self._shares(owners)
        uneven = shares if len({*shares}) > 1 else ()
        nodes = spread(graph_item, PSOptions(), owners, partial(self._cut, shares), of_shards, uneven)
        whole, notes = sum(not node.part_config for node in nodes), []
        if whole and len(owners) > 1:
            notes.append(
                f"{amount(whole, 'variable')} of at most {format_bytes(self.whole_bytes)} (whole_bytes), or of short "
                "axes: whole, with one owner each"
            )
        return Strategy.of(owners, nodes, notes)

    def _shares(self, owners: Sequence[str]) -> list[int]:
        """Return what each replica owns in proportion to the others."""
        machines = [DeviceSpec.parse(owner).address for owner in owners]
        said = self.shares or dict.fromkeys(machines, 1)
        found = [said.get(owner, said.get(machine, 0)) for owner, machine in zip(owners, machines, strict=True)]
        if 0 in found or {*said} - {*owners, *machines}:
            raise StrategyError(
                f"Sharded(shares={self.shares!r}): give a share for each machine that has replicas, and for no other: "
                f"{', '.join(dict.fromkeys(machines))}. The names of devices may stand for their machine's."
            )
        return [share // gcd(*found) for share in found]

    def _cut(self, shares: Sequence[int], variable: Variable) -> tuple[int, int]:
        """Return the axis along which a variable is split, and the number of shards; 1 if it stays whole."""
        owners, parts = len(shares), sum(shares)
        if owners < 2 or variable.byte_size <= self.whole_bytes:
            return 0, 1
        # The rows of a table go to the owners whole.
        lengths = variable.shape[:1] if variable.is_sparse else variable.shape
        even = [axis for axis, length in enumerate(lengths) if length and length % parts == 0]
        axis = even[0] if even else max(range(len(lengths)), key=lengths.__getitem__, default=None)
        return (axis, owners) if axis is not None and lengths[axis] * min(shares) >= parts else (0, 1)
