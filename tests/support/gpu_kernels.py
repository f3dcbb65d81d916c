"""Which nodes of a graph stand on a GPU where TensorFlow has no kernel for them.

TensorFlow's wheel for Linux has its GPU kernels registered on machines without a GPU, too. So a graph that is built for
GPUs can be compared with them anywhere.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from tensorflow.python.framework import kernels, op_def_registry

Kind = tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]
"""An operation with the types of its attributes."""


def without_kernel(nodes: Iterable[Any]) -> dict[Kind, str]:
    """What no GPU kernel computes among these nodes, with the name of one node of the kind."""
    return {kind: node.name for node in nodes for kind in _kinds(node) if not has_kernel(kind)}


def on_gpus(graph_def: Any) -> list[Any]:
    """The nodes of a graph that are placed on a GPU."""
    return [node for node in graph_def.node if "/device:GPU:" in node.device]


@cache
def has_kernel(kind: Kind) -> bool:
    """Whether a GPU computes this. TensorFlow takes a kernel for all devices where there is none for GPUs."""
    types = dict(kind[1])
    return any(
        all(allowed.issuperset(types[name]) for name, allowed in constraints.items())
        for constraints in _registered(kind[0])
    )


@cache
def _registered(op: str) -> tuple[Mapping[str, frozenset[int]], ...]:
    """For each kernel that a GPU can run, the types that it allows for each attribute."""
    return tuple(
        {each.name: frozenset(each.allowed_values.list.type) for each in kernel.constraint}
        for kernel in kernels.get_registered_kernels_for_op(op).kernel
        if kernel.device_type in ("GPU", "DEFAULT") and not kernel.label
    )


def _kinds(node: Any) -> Iterator[Kind]:
    """What must have a kernel for a node: the node, and of a ring the operation that adds two pieces up."""
    definition = op_def_registry.get(node.op)
    if definition is None:
        return  # a function: its operations are placed where it is called
    types = {}
    for attr in definition.attr:
        value = node.attr.get(attr.name, attr.default_value)
        if attr.type in ("type", "list(type)"):
            types[attr.name] = tuple(value.list.type) or (value.type,) * (attr.type == "type")
    yield node.op, tuple(sorted(types.items()))
    if node.op.startswith("CollectiveReduce"):
        yield node.attr["merge_op"].s.decode(), (("T", types["T"]),)
