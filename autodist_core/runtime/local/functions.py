"""Make a TensorFlow function of a distributed graph, which may have collectives.

In: a distributed graph, the resources that its nodes stand for, and what it is fed. Out: a function of tensors. A node
that makes a resource, such as a variable, is left out: what reads it reads the resource that exists already.

>>> from tensorflow.core.framework.graph_pb2 import GraphDef
>>> with tf.Graph().as_default() as graph:
...     added = tf.add(tf.compat.v1.placeholder(tf.float32, [], name="x"), 1.0, name="y")
>>> nodes = part(graph.as_graph_def(), ["y"])
>>> function = function_of(nodes, "step", {}, ["y"], [], [tf.TensorSpec([])], lambda tensors: {"x": tensors[0]})
>>> [value.numpy().item() for value in function(tf.constant(2.0))]
[3.0]
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from autodist_core.seams.table import EAGER_CONTEXT
from autodist_core.step import naming
from autodist_core.step.editor import mark_collectives
from autodist_core.step.reaching import reached

RESOURCES = ("VarHandleOp", "HashTableV2", "FIFOQueueV2")
"""The operations that make a resource."""


def part(graph_def: Any, wanted: Iterable[str]) -> Any:
    """The nodes on which these nodes depend, without those that make resources, and the functions of the graph.

    A function of TensorFlow runs every node with an effect, whether anything depends on it or not.

    >>> from tensorflow.core.framework.graph_pb2 import GraphDef
    >>> graph = GraphDef()
    >>> for name, inputs in (("a", []), ("b", ["a"]), ("c", ["a"])):
    ...     graph.node.add(name=name, op="Identity", input=inputs).name
    'a'
    'b'
    'c'
    >>> [node.name for node in part(graph, ["b:0"]).node]
    ['a', 'b']
    """
    nodes = {node.name: node for node in graph_def.node}
    found = set(reached(map(naming.node_of, wanted), lambda name: map(naming.node_of, nodes[name].input)))
    kept = [node for node in graph_def.node if node.name in found and node.op not in RESOURCES]
    return GraphDef(node=kept, library=graph_def.library, versions=graph_def.versions)


def function_of(
    nodes: Any, name: str, resources: Mapping[str, Any], outputs: Sequence[str], steps: Sequence[str],
    signature: Sequence[tf.TensorSpec], feeds: Callable[[Sequence[Any]], Mapping[str, Any]],
) -> Callable[..., list[Any]]:
    """Return a function that runs the nodes `steps` and returns the tensors `outputs`.

    `resources` has the handle for each node that makes one. `feeds` is called in the function's graph with the
    function's arguments, and returns what each placeholder is. The module has an example.
    """
    for function in nodes.library.function:
        EAGER_CONTEXT.get()().add_function_def(function)

    read = {source for node in nodes.node for source in naming.data_inputs(node)}

    def program(*arguments: Any) -> list[Any]:
        graph = tf.compat.v1.get_default_graph()
        given = {node: graph.capture(handle) for node, handle in resources.items() if node in read}
        given |= {node: tensor for node, tensor in feeds(arguments).items() if node in read}
        tensors = [each if ":" in each else f"{each}:0" for each in outputs]
        mapped = {f"{node}:0": tensor for node, tensor in given.items()}
        found = tf.graph_util.import_graph_def(nodes, mapped, [*tensors, *steps], name)
        with tf.control_dependencies(found[len(tensors) :]):
            results = [tf.identity(each) for each in found[: len(tensors)]]
            # A function without a result would run nothing.
            return results or [tf.constant(0)]

    # No control edges but those of the graph: what may run side by side does.
    return tf.compat.v1.wrap_function(program, list(signature), name)


_FIRST = 1 << 20
"""Above the numbers that TensorFlow's own strategies give to groups of devices."""
_groups: dict[tuple[str, ...], int] = {}
"""The number of each group of devices that has collectives. TensorFlow keeps a group for the whole process."""
_numbers = itertools.count(1)


class Collectives:
    """The collectives of one session over these devices, in functions of this process.

    TensorFlow orders the collectives of a device by a resource that each of them gets, its token; without one, a
    collective in a function waits for ever.

    >>> from tensorflow.core.framework.graph_pb2 import GraphDef
    >>> collectives, nodes = Collectives(("/device:CPU:0", "/device:CPU:1")), GraphDef()
    >>> collectives.prepare(nodes)
    {}
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._group = _groups.setdefault(tuple(devices), _FIRST + len(_groups))
        # Two sessions may have collectives of equal numbers and unlike shapes.
        self._number = next(_numbers) * 0x9E3779B1

    def prepare(self, nodes: Any) -> dict[str, Any]:
        """Give the collectives among these nodes numbers and tokens; return the token for each node that is one."""
        tokens = mark_collectives(nodes, self._group, self._number)
        return {name: _token(device).handle for name, device in tokens.items()}


@functools.cache
def _token(device: str) -> Any:
    """The variable whose handle is the token of a device."""
    with tf.init_scope(), tf.device(device):
        return tf.Variable(0.0, trainable=False)
