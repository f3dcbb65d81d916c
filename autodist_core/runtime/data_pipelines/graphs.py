"""The graph of a dataset: how it is written, what its operations are given, and a dataset that is made from it.

In: a dataset of tf.data. Out: its graph, for whoever looks for operations in it or sends it; and back again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from autodist_core.seams.table import OP_DEF
from autodist_core.step.naming import node_of

_IGNORE = 1
"""What TensorFlow does about operations with a state of their own: it writes them, for whoever looks for them."""


def graph_of(dataset: Any) -> Any:
    """The graph of a dataset, with its functions; a ValueError says why TensorFlow cannot write it.

    >>> [node.op for node in graph_of(tf.data.Dataset.range(3).batch(2)).node if node.op.endswith("V2")]
    ['BatchDatasetV2']
    """
    try:
        variant = tf.data.experimental.to_variant(dataset)
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=variant, external_state_policy=_IGNORE, strip_device_assignment=True
        )
        return tf.compat.v1.GraphDef.FromString(serialized.numpy())
    except tf.errors.OpError as error:
        text = error.message.rpartition("}} ")[2].partition(" [Op")[0]
        raise ValueError(f"TensorFlow cannot write its graph ({text.rstrip('.')})") from None


def inputs_of(node: Any) -> list[str]:
    """The names of an operation's inputs, as far as each is one tensor.

    >>> [inputs_of(node) for node in graph_of(tf.data.Dataset.range(3)).node if node.op == "RangeDataset"]
    [['start', 'stop', 'step']]
    """
    definition = OP_DEF.get()(node.op)
    return [] if definition is None else [argument.name for argument in definition.input_arg]


def constant_of(nodes: Mapping[str, Any], name: str) -> Any:
    """The scalar that an input is; None if it is no constant.

    >>> nodes = {node.name: node for node in graph_of(tf.data.Dataset.range(3)).node}
    >>> [constant_of(nodes, name) for node in nodes.values() if node.op == "RangeDataset" for name in node.input]
    [0, 3, 1]
    """
    source = nodes.get(node_of(name))
    if source is None or source.op != "Const":
        return None
    return tf.make_ndarray(source.attr["value"].tensor).item()


def dataset_of(graph: Any, spec: Any) -> Any:
    """The dataset of a graph, whose elements have this spec.

    >>> numbers = tf.data.Dataset.range(3)
    >>> [int(number) for number in dataset_of(graph_of(numbers), numbers.element_spec)]
    [0, 1, 2]
    """
    return tf.data.experimental.from_variant(tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString()), spec)


def with_own_seeds(dataset: Any, name: str) -> Any:
    """The same dataset, with generators of seeds of its own.

    Datasets that are made of one dataset share its generators, and take the seeds of an epoch from each other. A
    generator is a resource with a name. A dataset makes those that do not exist.

    >>> numbers = tf.data.Dataset.range(9).shuffle(9, seed=3)
    >>> one, other = (with_own_seeds(numbers, name) for name in ("one", "other"))
    >>> [[*one.as_numpy_iterator()] == [*other.as_numpy_iterator()] for _ in range(2)]
    [True, True]
    """
    graph = graph_of(dataset)
    for node in graph.node:
        for handle in node.attr["value"].tensor.resource_handle_val if node.op == "Const" else ():
            handle.name = f"{handle.name}/{name}"
    return dataset_of(graph, dataset.element_spec)
