"""Strategy: the result of a builder, not yet checked.

A :class:`Strategy` is a thin wrapper over the protobuf message ``autodist.proto.Strategy``. Builders make frozen nodes,
and this module alone writes them as a message and reads them again. A builder of a user may fill the message itself.
The compiler checks the Strategy and makes the frozen CompiledStrategy, which later stages read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from google.protobuf import message as protobuf

from autodist_core.errors import StrategyError, amount
from autodist_core.proto import strategy_pb2, synchronizers_pb2
from autodist_core.strategy.synchronizers import BUCKET_BYTES, POWER_SGD_RANK, AllReducePlan, Node, PSPlan, Synchronizer

_Reduce = synchronizers_pb2.AllReduceSynchronizer
SPECS: tuple[str, ...] = tuple(_Reduce.Spec.keys())
"""The names of the implementations of a collective."""
COMPRESSORS: tuple[str, ...] = tuple(_Reduce.Compressor.keys())
"""The names of the compressors."""
WIRE_DTYPES: tuple[str, ...] = tuple(_Reduce.WireDtype.keys())
"""The names of the types of half precision."""
_FIELDS = {"destinations": "reduction_destinations"}
"""The fields of messages that have another name than those of the values."""
_LEFT_OUT = {"power_sgd_rank": POWER_SGD_RANK, "bucket_bytes": BUCKET_BYTES, "wire_dtype": ""}
"""The defaults that are not written, so that the message equals one of a version without these fields."""


class Strategy:
    """How the training of one model is distributed: a wrapper over ``autodist.proto.Strategy``.

    >>> node = Node("dense/kernel", PSPlan(("10.0.0.1:CPU:0",)))
    >>> strategy = Strategy.of(["10.0.0.1:GPU:0", "10.0.0.2:GPU:0"], [node])
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

    @classmethod
    def of(cls, replicas: Iterable[str], nodes: Iterable[Node], notes: Iterable[str] = ()) -> Strategy:
        """Return the strategy that says this of the variables.

        >>> Strategy.of(["a:CPU:0"], [Node("w", AllReducePlan("RNIG"))])
        Traceback (most recent call last):
        autodist_core.errors.StrategyError: 'w': all_reduce(group=0, spec=RNIG): unknown enum label "RNIG".
        """
        config = strategy_pb2.Strategy.GraphConfig(replicas=replicas)
        return cls(strategy_pb2.Strategy(node_config=map(_written, nodes), graph_config=config, notes=notes))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What the message says of the variables, as frozen values."""
        return tuple(map(_read, self._message.node_config))

    @property
    def replicas(self) -> tuple[str, ...]:
        """The devices that compute."""
        return tuple(self._message.graph_config.replicas)

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
        message = deepcopy(self._message)
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
        return Strategy(deepcopy(self._message))

    def noted(self, *notes: str) -> Strategy:
        """Return a copy that has these notes too.

        >>> print(Strategy().noted("nothing is decided"))
        strategy ... @ 0 replicas
          note: nothing is decided
        """
        copy = self.copy()
        copy.notes.extend(notes)
        return copy

    def _lines(self) -> list[str]:
        nodes = self.nodes
        names = max((len(node.var_name) for node in nodes), default=0)
        return [
            *(f"  replica {replica}" for replica in self.replicas),
            *(f"  {node.var_name:{names}} : {node}" for node in nodes),
        ]

    def __str__(self) -> str:
        head = f"strategy {self.id} @ {amount(len(self.replicas), 'replica')}"
        return "\n".join([head, *self._lines(), *(f"  note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        variables, replicas = len(self.node_config), len(self.replicas)
        return f"<Strategy {self.id}: {amount(variables, 'variable')}, {amount(replicas, 'replica')}>"

    def __eq__(self, other: object) -> bool:
        return self.proto == other.proto if isinstance(other, Strategy) else NotImplemented

    # A strategy can change, so it must not be a key of a dict.
    __hash__ = None  # type: ignore[assignment]


def _written(node: Node) -> strategy_pb2.Strategy.Node:
    """A node as a message."""
    said, settings = node.synchronizer, dict[str, Any]()
    parts = [_written(part) for part in node.part_config]
    if said is not None:
        kind = "PSSynchronizer" if isinstance(said, PSPlan) else "AllReduceSynchronizer"
        values = {_FIELDS.get(name, name): value for name, value in vars(said).items()}
        settings[kind] = {name: value for name, value in values.items() if value != _LEFT_OUT.get(name)}
    try:
        return strategy_pb2.Strategy.Node(
            var_name=node.var_name, partitioner=node.partitioner, part_config=parts, note=node.note, **settings
        )
    except (TypeError, ValueError) as error:
        raise StrategyError(f"'{node.var_name}': {said}: {error}.") from None


def _read(message: strategy_pb2.Strategy.Node) -> Node:
    """A message as a node."""
    kind, ps, reduce = message.WhichOneof("synchronizer"), message.PSSynchronizer, message.AllReduceSynchronizer
    said: Synchronizer | None = None
    contradiction = ""
    if kind == "PSSynchronizer":
        places = tuple(ps.reduction_destinations) or tuple(filter(None, [ps.reduction_destination]))
        sent = _name(_Reduce.WireDtype, ps.wire_dtype) if ps.HasField("wire_dtype") else ""
        said = PSPlan(
            places, ps.local_replication, ps.sync, ps.staleness, ps.gathered, ps.again_within, sent, ps.factor_rows
        )
        if ps.reduction_destination and places != (ps.reduction_destination,):
            contradiction = (
                f"has reduction_destination '{ps.reduction_destination}' and other reduction_destinations "
                f"({', '.join(places)}). Set one of the two fields."
            )
    elif kind:
        said = AllReducePlan(
            _name(_Reduce.Spec, reduce.spec), _name(_Reduce.Compressor, reduce.compressor),
            None if reduce.chunk_size and not reduce.HasField("group") else reduce.group, reduce.chunk_size,
            reduce.power_sgd_rank, reduce.bucket_bytes or BUCKET_BYTES, _name(_Reduce.WireDtype, reduce.wire_dtype),
            reduce.factor_rows,
        )
    parts = tuple(map(_read, message.part_config))
    return Node(message.var_name, said, message.partitioner, parts, message.note, contradiction)


def _name(enum: Any, number: int) -> str:
    """The name of a number; a number without a name stands for itself."""
    return enum.Name(number) if number in enum.values() else str(number)
