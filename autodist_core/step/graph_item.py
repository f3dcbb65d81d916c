"""GraphItem: one captured train step, which every later stage reads.

Capture makes the GraphItem, a strategy builder reads its variables, and the kernels read its graph. Its parts are plain
frozen values (see `values`). Its bytes are a file format (see `messages`): a step can be captured on one machine,
stored, and planned or built on another. Only the property ``graph_def`` imports TensorFlow.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autodist_core.errors import CaptureError, amount, did_you_mean
from autodist_core.proto import graphitem_pb2
from autodist_core.step import serialization
from autodist_core.step.values import ALIKE, EACH, UNIQUE, Gradient, Joined, Table, Tensor, Variable, format_bytes

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

__all__ = ["ALIKE", "EACH", "UNIQUE", "Gradient", "GraphItem", "Joined", "Table", "Tensor", "Variable", "format_bytes"]


@dataclass(frozen=True)
class GraphItem:
    """One captured step. Two items with equal fields are equal.

    >>> item = GraphItem(variables=(Variable("w", (3, 2), "float32"), Variable("steps", (), "int64", trainable=False)))
    >>> list(item.trainable_var_op_to_var)
    ['w']
    >>> GraphItem.deserialize(item.serialize()) == item
    True
    >>> print(item)
    graph item: 2 variables (1 trainable, 24 B), 0 gradients, 0 inputs, 0 outputs, no graph
      w     : f32[3,2]
      steps : i64[]    not trainable
    """

    variables: tuple[Variable, ...]
    gradients: tuple[Gradient, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[str, ...] = ()
    concat_outputs: bool = False
    """Whether outputs have one row for each example and are concatenated over replicas, unless `joined` says otherwise.
    Other outputs are averaged."""
    examples: str = ""
    """The placeholder for the number of examples of this replica."""
    total: str = ""
    """The placeholder for the number of examples of all replicas."""
    replica: str = ""
    """The placeholder for the number of this replica; empty if the step does not ask for it."""
    cross_replica_sums: tuple[str, ...] = ()
    """Identity nodes whose values are summed over the replicas."""
    cross_replica_gathers: tuple[str, ...] = ()
    """Identity nodes whose values are the rows of all replicas, one replica's behind the other's."""
    cross_replica_maxima: tuple[str, ...] = ()
    """Identity nodes of whose values the largest over the replicas are taken."""
    targets: tuple[str, ...] = ()
    """Nodes that must run although no other node reads them."""
    tables: tuple[Table, ...] = ()
    joined: tuple[Joined, ...] = ()
    """How the replicas' integers and truth values become the whole batch's, where that is known."""
    graph_bytes: bytes = b""
    """The serialized GraphDef, with the nodes in the order of their creation; empty for an item without a graph."""
    jit_compile: bool = False
    """Whether XLA compiles each replica's compute, as far as it can."""
    explicit_seeds: bool = False
    """Whether stateless draws take the same numbers on every replica, if their seed is not made of a generator's state.
    Functions of `run()` have this meaning of `tf.distribute`."""
    draws_as_one: bool = False
    """Whether replicas draw the random numbers of one device, as far as they can, to be compared with it."""
    handed_in: bool = False
    """Whether a backward pass begins with a tensor, no number, that the step hands in. No shape in that pass is certain
    before it has run."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))
        names = Counter(variable.name for variable in self.variables)
        for name, times in names.items():
            if times > 1:
                raise CaptureError(
                    f"{times} variables are named '{name}'. Give each a name of its own: strategies go by it."
                )
        for gradient in self.gradients:
            if gradient.variable not in names:
                hint = did_you_mean(gradient.variable, names)
                raise CaptureError(
                    f"gradient '{gradient.values}' is for '{gradient.variable}', which is no variable here.{hint}"
                )

    @property
    def trainable_var_op_to_var(self) -> dict[str, Variable]:
        """The variables that the step trains, by name and in graph order."""
        return {variable.name: variable for variable in self.variables if variable.trainable}

    @property
    def over_replicas(self) -> tuple[str, ...]:
        """The nodes whose values become one over the replicas."""
        return (*self.cross_replica_sums, *self.cross_replica_gathers, *self.cross_replica_maxima)

    @property
    def grad_target_pairs(self) -> dict[str, str]:
        """The names of the variables, by the tensor of the gradient or of a sparse gradient's rows."""
        return {gradient.values: gradient.variable for gradient in self.gradients if gradient.values}

    @cached_property
    def graph_def(self) -> GraphDef:
        """The captured graph, parsed on first use. All callers get the same object: copy it before you change it."""
        from tensorflow.core.framework.graph_pb2 import GraphDef

        return GraphDef.FromString(self.graph_bytes)

    @cached_property
    def found(self) -> dict[Any, Any]:
        """What later stages have found out about the step, so that it is found out once. It is no part of the value."""
        return {}

    @property
    def usual_examples(self) -> int:
        """The number of examples of the batch for which the step was captured; 0 if it is not known."""
        return int(self.found.get("examples", 0))

    @property
    def info(self) -> graphitem_pb2.GraphItem.Info:
        """The variables and tables as the message's ``info`` holds them."""
        return serialization.info(self.variables, self.tables)

    def serialize(self) -> bytes:
        """Return the item as bytes. Equal items give equal bytes."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return serialization.serialize({**parts, "grad_target_pairs": self.grad_target_pairs})

    @classmethod
    def deserialize(cls, data: bytes) -> GraphItem:
        """Return the item that :meth:`serialize` wrote as ``data``."""
        return cls(**serialization.deserialize(data))

    def __str__(self) -> str:
        trainable = self.trainable_var_op_to_var.values()
        size = format_bytes(sum(variable.byte_size for variable in trainable))
        counts = ", ".join(f"{len(getattr(self, name))} {name}" for name in ("gradients", "inputs", "outputs"))
        graph = f"a graph of {format_bytes(len(self.graph_bytes))}" if self.graph_bytes else "no graph"
        variables = f"{amount(len(self.variables), 'variable')} ({len(trainable)} trainable, {size})"
        lines = [f"graph item: {variables}, {counts}, {graph}"]
        names = max((len(variable.name) for variable in self.variables), default=0)
        types = max((len(variable.type_text) for variable in self.variables), default=0)
        for variable in self.variables:
            marks = [] if variable.trainable else ["not trainable"]
            marks += ["sparse"] if variable.is_sparse else []
            marks += [variable.kind] if variable.kind != "model" else []
            marks += [f"aggregation={variable.aggregation}"] if variable.aggregation != "none" else []
            lines.append(f"  {variable.name:{names}} : {variable.type_text:{types}} {', '.join(marks)}".rstrip())
        lines += [f"  input {tensor}" for tensor in self.inputs]
        return "\n".join(lines)

