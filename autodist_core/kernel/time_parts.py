"""To which part of a step a node of a distributed graph belongs: its data, compute, update, or the exchange.

In: the name of a node, as the kernels make it, and its type of operation. Out: a `Part`. The names begin with words
that are each one kernel's::

    replica0/dense/MatMul           Replicator            compute
    compiled/0                      Compile               compute, and the update with it
    all_reduce/0/.../replica0/sum   AllReduceSynchronizer exchange
    update/replica0/step            Update                update
    data/replica0/batch/...         (drawn)               input

`runtime/timings.py` uses this for the nodes whose times TensorFlow measured: of these, it returns names only.
"""

import re
from enum import Enum

from autodist_core.step.naming import FIRST


class Part(Enum):
    """A part of a step inside TensorFlow.

    >>> print(*(part.name for part in Part))
    INPUT COMPUTE UPDATE EXCHANGE
    """

    INPUT = "the next batch of a data pipeline that the machine runs"
    COMPUTE = "from the inputs to the gradients, and the results"
    UPDATE = "from the gradients to the new values of the variables"
    EXCHANGE = "gradients and new values between devices: packing, adding up, travelling, waiting"


PARTS = {
    **dict.fromkeys(
        ("replica", "local", "at_once", "whole", "stacked", "weighted", "alike", "joined", "result", "compiled"),
        Part.COMPUTE,
    ),
    **dict.fromkeys(("update", "kept", "alive", "compressor"), Part.UPDATE),
    **dict.fromkeys(("all_reduce", "reduced", "brought", "sent", "pull", "combine"), Part.EXCHANGE),
    "data": Part.INPUT,
    **dict.fromkeys(("feed", "variable", "table", "barrier", "signal", "returned", "step"), None),
}
"""The part by the first word of a node's name. Nodes without a part take no time."""
_CALLED = re.compile("((machine|local|replica)[0-9]+/own[0-9]+/)+")
"""The calls before the name of a node that is in a function of a machine or a replica (`kernel/units/`)."""
_TRAVELS = re.compile("_?(Host)?(Recv|Send|RecvTensor|RecvBuf)$|Collective")
"""Types of operations that wait for another device. TensorFlow gives them names of its own."""


def part_of(name: str, op: str) -> Part | None:
    """The part of a step to which a node belongs; None for a node that takes no time, and for one of no known name.

    >>> part_of("replica1/dense/MatMul", "MatMul").name, part_of("replica1/dense/edge_7", "_Recv").name
    ('COMPUTE', 'EXCHANGE')
    >>> part_of("reduced/memory/0/kernel", "AddN").name, part_of("at_once/replica0/0/kernel", "_MklMatMul").name
    ('EXCHANGE', 'COMPUTE')
    >>> part_of("machine7/own1/update/local0/step", "AssignAddVariableOp").name
    'UPDATE'
    >>> part_of("machine7/own1/local3/own0/local0/dense/MatMul", "MatMul").name
    'COMPUTE'
    >>> part_of("data/replica1/batch/IteratorGetNext", "IteratorGetNext").name
    'INPUT'
    >>> part_of("feed/total", "Placeholder") is None
    True
    """
    if _TRAVELS.match(op):
        return Part.EXCHANGE
    own = _CALLED.sub("", name).removeprefix(f"{FIRST}/")
    return PARTS.get(own.partition("/")[0].rstrip("0123456789"))
