"""Names in a graph: of nodes, of their outputs, of control edges; and the attributes by which nodes are marked."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tensorflow.core.framework import node_def_pb2

ORDER = "_order"
"""Attribute of a node that touches a variable: the time at which it does."""
UPDATE = "_update"
"""Attribute of a captured node that belongs to the update: which of the step's updates it is."""
BRANCH = "_branch"
"""Attribute of an update's node that runs in one branch of a conditional: the pivots of the branches around it."""


def split(name: str) -> tuple[str, int]:
    """Node and output number of a tensor name.

    >>> split("dense/MatMul"), split("split:1"), split("^train")
    (('dense/MatMul', 0), ('split', 1), ('train', -1))
    """
    if name.startswith("^"):
        return name[1:], -1
    node, _, output = name.partition(":")
    return node, int(output or 0)


def tensor(node: str, output: int = 0) -> str:
    """The canonical tensor name, as nodes list their inputs."""
    return node if output == 0 else f"{node}:{output}"


def canonical(name: str) -> str:
    """A tensor's name as nodes list their inputs.

    >>> canonical("dense/MatMul:0"), canonical("split:1")
    ('dense/MatMul', 'split:1')
    """
    return tensor(*split(name))


def label(name: str) -> str:
    """A tensor's name as part of a node's name, another one for every tensor.

    >>> label("split:1"), label("split_1")
    ('split/output1', 'split_1/output0')
    """
    node, output = split(name)
    return f"{node}/output{output}"


def node_of(name: str) -> str:
    """The node that produces a tensor, or that a control input names."""
    return name.removeprefix("^").partition(":")[0]


def is_control(name: str) -> bool:
    """Whether an input is a control edge."""
    return name.startswith("^")


def safe(name: str) -> str:
    """A variable's name as part of a node's name, another one for every variable.

    A character that has another meaning here, or that TensorFlow does not allow, is written as its code.

    >>> safe("dense/kernel@memory"), safe("dense layer/w ö")
    ('dense/kernel.memory', 'dense-20-layer/w-20--f6-')
    """
    return re.sub(r"[^A-Za-z0-9_/@]", lambda found: f"-{ord(found[0]):x}-", name).replace("@", ".")


def data_inputs(node: node_def_pb2.NodeDef) -> Iterator[str]:
    """The inputs that carry values, in order."""
    return (name for name in node.input if not is_control(name))


def branch_of(node: node_def_pb2.NodeDef) -> tuple[str, ...]:
    """The pivots of the branches in which a node runs, outermost first; none for a node that always runs."""
    return tuple(name.decode() for name in node.attr[BRANCH].list.s) if BRANCH in node.attr else ()
