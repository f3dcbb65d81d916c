"""Divide compute into stages by the gradients that it computes: those of one stage travel while the next stage runs.

In: a captured step. Out: the number of the stage of each node. For two large dense layers, whose backward pass computes
the gradient of the second layer first::

    forward pass, loss, gradient of the second layer      stage 0
    gradient of the first layer, and what only logs       stage 1

The gradients of a stage have about as many bytes together as one collective takes. A node is in the first stage that
needs its value, so no node needs the value of a later stage. Nodes that exchange lists are in the same stage.
"""

import tensorflow as tf

from autodist_core.step import naming
from autodist_core.step.index import StepIndex, analysis
from autodist_core.step.ports import inputs_of
from autodist_core.strategy.synchronizers import BUCKET_BYTES


@analysis
def send_stages(step: StepIndex) -> dict[str, int]:
    """Return the stage of each node of compute.

    >>> from autodist_core.capture.example import example_step
    >>> set(send_stages(StepIndex(example_step())).values())
    {0}
    """
    compute = [node.name for node in step.graph.node if not step.is_update(node.name)]
    ends = _ends(step)
    last = max(ends.values(), default=0)
    found = {name: ends.get(name, last) for name in compute}
    lists = _exchanged_lists(step, found)
    _settle(step, found)
    while later := [(writer, reader) for writer, reader in lists if found[reader] > found[writer]]:
        for writer, reader in later:
            found[reader] = min(found[reader], found[writer])
        _settle(step, found)
    return found


def _ends(step: StepIndex) -> dict[str, int]:
    """Return the nodes that compute gradients, each with the number of its stage."""
    sizes: dict[str, int] = {}
    for gradient in step.item.gradients:
        for name in gradient.parts:
            node = naming.node_of(step.nodes[naming.node_of(name)].input[0])
            # How many rows a sparse gradient has is not known, and they are few.
            sizes[node] = 0 if gradient.indices else step.variables[gradient.variable].byte_size
    found: dict[str, int] = {}
    stage = filled = 0
    for node in sorted(sizes, key=lambda name: step.position[name]):
        if filled and filled + sizes[node] > BUCKET_BYTES:
            stage, filled = stage + 1, 0
        filled += sizes[node]
        found[node] = stage
    return found


def _settle(step: StepIndex, found: dict[str, int]) -> None:
    """Lower the stage of each node to the first stage that needs it."""
    for name in sorted(found, key=lambda name: step.position[name], reverse=True):
        for source in {naming.node_of(source) for source in step.nodes[name].input} & found.keys():
            found[source] = min(found[source], found[name])


def _exchanged_lists(step: StepIndex, compute: dict[str, int]) -> list[tuple[str, str]]:
    """Return which node reads a list of which other one: a function that XLA compiles does not hand lists over."""
    functions = step.functions.functions
    return [
        (naming.node_of(source), node.name) for node in step.graph.node if node.name in compute
        for source, port in zip(naming.data_inputs(node), inputs_of(node, functions), strict=True)
        if port.dtype == tf.variant and naming.node_of(source) in compute
    ]
