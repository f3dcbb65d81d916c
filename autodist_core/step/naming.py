"""Names in a graph: of nodes, of their outputs and of control inputs; and the attributes that mark nodes.

Functions take a name or a node apart, or make a name. The editor, capture and the kernels use them.
"""

import re
from collections.abc import Iterator

from tensorflow.core.framework import node_def_pb2

ORDER = "_order"
"""The attribute of a node that touches a variable: the time of the access in the captured step's order."""
UPDATE = "_update"
"""The attribute of a captured node that belongs to an update: the number of the update within the step."""
BRANCH = "_branch"
"""The attribute of an update's node in a branch of a conditional: the pivots of the branches around it."""
MARKS = (ORDER, UPDATE, BRANCH)
"""The attributes by which capture and the kernels know nodes. TensorFlow gets nodes without them."""
OF_WHOLE_BATCH = "of_whole_batch"
"""The last part of the name of a draw that every replica makes for the whole batch, as `verify` has it."""
FIRST = ".first"
"""How the name of a snapshot begins that is the first input of a sum of three or more tensors.

`AddN` adds the other inputs to the first one whose memory nobody else reads. Which input that is depends on time, and
so would the last digits of the sum. Nobody else reads the snapshot, which is a copy only if somebody else reads its
input. TensorFlow's graph optimizer sorts the inputs of a sum by name, and no other name comes before this one.
"""


def split(name: str) -> tuple[str, int]:
    """Return the node and the output number of a tensor name. A control input has the output number -1.

    >>> split("dense/MatMul"), split("split:1"), split("^train")
    (('dense/MatMul', 0), ('split', 1), ('train', -1))
    """
    if name.startswith("^"):
        return name[1:], -1
    node, _, output = name.partition(":")
    return node, int(output or 0)


def tensor(node: str, output: int = 0) -> str:
    """Return the name of a node's output in the form in which nodes list their inputs; -1 stands for a control input.

    >>> tensor("split", 1), tensor("dense/MatMul"), tensor("train", -1)
    ('split:1', 'dense/MatMul', '^train')
    """
    return f"{node}:{output}" if output > 0 else f"^{node}" if output else node


def canonical(name: str) -> str:
    """Return a tensor's name in the form in which nodes list their inputs.

    >>> canonical("dense/MatMul:0"), canonical("split:1")
    ('dense/MatMul', 'split:1')
    """
    return tensor(*split(name))


def label(name: str) -> str:
    """Return a tensor's name as a part of a node's name. Different tensors give different labels.

    >>> label("split:1"), label("split_1")
    ('split/output1', 'split_1/output0')
    """
    node, output = split(name)
    return f"{node}/output{output}"


def node_of(name: str) -> str:
    """Return the node that produces a tensor, or the node that a control input names.

    >>> node_of("split:1"), node_of("^train")
    ('split', 'train')
    """
    return name[1:] if name.startswith("^") else name.partition(":")[0]


def is_control(name: str) -> bool:
    """Whether an input is a control input.

    >>> is_control("^train"), is_control("train")
    (True, False)
    """
    return name.startswith("^")


def safe(name: str) -> str:
    """Return a variable's name as a part of a node's name. Different variables give different names.

    A character that TensorFlow does not allow, or that has a meaning of its own in node names, is written as its code.

    >>> safe("dense/kernel@memory"), safe("dense layer/w ö")
    ('dense/kernel.memory', 'dense-20-layer/w-20--f6-')
    """
    return re.sub(r"[^A-Za-z0-9_/@]", lambda found: f"-{ord(found[0]):x}-", name).replace("@", ".")


def data_inputs(node: node_def_pb2.NodeDef) -> Iterator[str]:
    """Return the inputs of a node that are tensors, in order, without the control inputs.

    >>> list(data_inputs(node_def_pb2.NodeDef(name="sum", op="AddV2", input=["x", "y:1", "^before"])))
    ['x', 'y:1']
    """
    return (name for name in node.input if not name.startswith("^"))


def branch_of(node: node_def_pb2.NodeDef) -> tuple[str, ...]:
    """Return the pivots of the branches in which a node runs, outermost first; empty for a node that always runs.

    >>> node = node_def_pb2.NodeDef(name="assign", op="NoOp")
    >>> node.attr[BRANCH].list.s.append(b"cond/then")
    >>> branch_of(node)
    ('cond/then',)
    """
    return tuple(name.decode() for name in node.attr[BRANCH].list.s) if BRANCH in node.attr else ()
