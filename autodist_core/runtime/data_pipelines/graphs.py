"""The graph of a dataset: how it is written, and what its operations are given.

In: a dataset of tf.data. Out: its graph, for whoever looks for operations in it.
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
