"""Strategy: the result of a builder, not yet checked.

A :class:`Strategy` is a thin wrapper over the protobuf message ``autodist.proto.Strategy``. A builder fills the
message. The compiler checks the Strategy and makes the frozen CompiledStrategy, which later stages read.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from google.protobuf import message as protobuf

from autodist_core.errors import StrategyError, amount
from autodist_core.proto import strategy_pb2
from autodist_core.strategy import synchronizers
from autodist_core.strategy.partition import PartitionerConfig


class Strategy:
    """How the training of one model is distributed: a wrapper over ``autodist.proto.Strategy``.

    >>> strategy = Strategy()
    >>> strategy.graph_config.replicas.extend(["10.0.0.1:GPU:0", "10.0.0.2:GPU:0"])
    >>> node = strategy.node_config.add(var_name="dense/kernel")
    >>> node.PSSynchronizer.sync = True
    >>> node.PSSynchronizer.reduction_destination = "10.0.0.1:CPU:0"
    >>> print(strategy)
    strategy 406fe7d1fa39 @ 2 replicas
      replica 10.0.0.1:GPU:0
      replica 10.0.0.2:GPU:0
      dense/kernel : ps(10.0.0.1:CPU:0)
    >>> Strategy.deserialize(strategy.serialize()) == strategy
    True
    """

    def __init__(self, message: strategy_pb2.Strategy | None = None) -> None:
        self._message = strategy_pb2.Strategy() if message is None else message

    @property
    def node_config(self) -> Any:
        """The nodes, one for each trainable variable. This is the message's own container: add nodes to it."""
        return self._message.node_config

    @property
    def graph_config(self) -> strategy_pb2.Strategy.GraphConfig:
        """The settings of the graph as a whole: its ``replicas``."""
        return self._message.graph_config

    @property
    def notes(self) -> Any:
        """The builder's notes for the plan. This is the message's own container. Notes do not change the id."""
        return self._message.notes

    @property
    def id(self) -> str:
        """A hash of the text form without its first line. Notes and path do not change it."""
        return hashlib.sha256("\n".join(self._lines()).encode()).hexdigest()[:12]

    @property
    def proto(self) -> strategy_pb2.Strategy:
        """A copy of the message with the id filled in."""
        message = strategy_pb2.Strategy()
        message.CopyFrom(self._message)
        message.id = self.id
        return message

    def serialize(self) -> bytes:
        """Return the strategy as bytes. Equal strategies give equal bytes."""
        return self.proto.SerializeToString(deterministic=True)

    @classmethod
    def deserialize(cls, data: bytes) -> Strategy:
        """Return the strategy that :meth:`serialize` wrote as ``data``."""
        try:
            message = strategy_pb2.Strategy.FromString(data)
        except protobuf.DecodeError as error:
            raise StrategyError(f"{len(data)} bytes are not a serialized Strategy ({error}).") from None
        strategy = cls(message)
        if message.id and message.id != strategy.id:
            raise StrategyError(
                f"the strategy says its id is '{message.id}', and its content gives '{strategy.id}': it was "
                "changed after it was stored, or another version wrote it. Build it again, or clear the message's id."
            )
        message.id = ""
        return strategy

    def copy(self) -> Strategy:
        """Return a copy. A change of one of the two does not change the other one.

        >>> one = Strategy()
        >>> other = one.copy()
        >>> other.graph_config.replicas.append("10.0.0.1:GPU:0")
        >>> len(one.graph_config.replicas), len(other.graph_config.replicas)
        (0, 1)
        """
        message = strategy_pb2.Strategy()
        message.CopyFrom(self._message)
        return Strategy(message)

    def _lines(self) -> list[str]:
        names = max((len(node.var_name) for node in self.node_config), default=0)
        return [
            *(f"  replica {replica}" for replica in self.graph_config.replicas),
            *(f"  {node.var_name:{names}} : {_node_text(node)}" for node in self.node_config),
        ]

    def __str__(self) -> str:
        count = len(self.graph_config.replicas)
        head = f"strategy {self.id} @ {amount(count, 'replica')}"
        return "\n".join([head, *self._lines(), *(f"  note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        variables, replicas = len(self.node_config), len(self.graph_config.replicas)
        return f"<Strategy {self.id}: {amount(variables, 'variable')}, {amount(replicas, 'replica')}>"

    def __eq__(self, other: object) -> bool:
        return self.proto == other.proto if isinstance(other, Strategy) else NotImplemented

    # A strategy can change, so it must not be a key of a dict.
    __hash__ = None  # type: ignore[assignment]


def _node_text(node: strategy_pb2.Strategy.Node) -> str:
    if not node.partitioner and not node.part_config:
        return _synchronizer_text(node, _places(node))
    try:
        split = synchronizers.split_text(PartitionerConfig(partition_str=node.partitioner))
    except StrategyError:
        # A strategy prints before it is checked, so a partitioner that does not parse is printed as it was written.
        split = f"split({node.partitioner!r})"
    parts = [part if part.WhichOneof("synchronizer") else node for part in node.part_config] or [node]
    if len({_synchronizer_text(part, ()) for part in parts}) == 1:
        return f"{split} {_synchronizer_text(parts[0], tuple(place for part in parts for place in _places(part)))}"
    return f"{split} {' + '.join(_synchronizer_text(part, _places(part)) for part in parts)}"


def _places(node: strategy_pb2.Strategy.Node) -> tuple[str, ...]:
    """The devices on which the variable or the shard lives; empty for one that every replica holds."""
    return synchronizers.destinations(node.PSSynchronizer)


def _synchronizer_text(node: strategy_pb2.Strategy.Node, places: tuple[str, ...]) -> str:
    kind = node.WhichOneof("synchronizer")
    if kind == "PSSynchronizer":
        return str(replace(synchronizers.lower_ps(node.PSSynchronizer), destinations=places))
    if kind == "AllReduceSynchronizer":
        reduce = node.AllReduceSynchronizer
        # The default of the rank is not written out: the id is made of this text.
        return str(replace(synchronizers.lower_all_reduce(reduce, None), power_sgd_rank=reduce.power_sgd_rank))
    return "no synchronizer"
