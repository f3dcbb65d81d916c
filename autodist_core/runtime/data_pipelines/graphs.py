"""The graph of a dataset: how it is written, what its operations are given, and a dataset that is made from it.

In: a dataset of tf.data. Out: its graph, for whoever looks for operations in it or sends it; and back again.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from autodist_core.runtime.data_pipelines.iterator_states import IGNORE
from autodist_core.seams.table import OP_DEF
from autodist_core.step.naming import node_of


def graph_of(dataset: Any) -> Any:
    """The graph of a dataset, with its functions; a ValueError says why TensorFlow cannot write it.

    >>> [node.op for node in graph_of(tf.data.Dataset.range(3).batch(2)).node if node.op.endswith("V2")]
    ['BatchDatasetV2']
    """
    try:
        return tf.compat.v1.GraphDef.FromString(written(tf.data.experimental.to_variant(dataset)).numpy())
    except tf.errors.OpError as error:
        text = error.message.rpartition("}} ")[2].partition(" [Op")[0]
        raise ValueError(f"TensorFlow cannot write its graph ({text.rstrip('.')})") from None


def written(variant: Any) -> Any:
    """The graph of a dataset as a tensor of bytes. Operations with a state of their own are in it, to be looked for.

    >>> written(tf.data.experimental.to_variant(tf.data.Dataset.range(3))).dtype
    tf.string
    """
    return tf.raw_ops.DatasetToGraphV2(
        input_dataset=variant, external_state_policy=IGNORE, strip_device_assignment=True
    )


def inputs_of(node: Any) -> list[str]:
    """The names of an operation's inputs, as far as each is one tensor.

    >>> [inputs_of(node) for node in graph_of(tf.data.Dataset.range(3)).node if node.op == "RangeDataset"]
    [['start', 'stop', 'step']]
    """
    definition = OP_DEF.get()(node.op)
    return [] if definition is None else [argument.name for argument in definition.input_arg]


def is_drawn_first(graph: Any, given: str, simple: re.Pattern[str]) -> bool:
    """Whether at most one dataset has an input of this name, and only datasets of simple types stand behind it.

    >>> numbers, simple = tf.data.Dataset.range(9).shuffle(9), re.compile("OptionsDataset")
    >>> [is_drawn_first(graph_of(each), "seed2", simple) for each in (numbers, numbers.batch(3))]
    [True, False]
    """
    nodes = {node.name: node for node in graph.node}
    having = [node.name for node in graph.node if given in inputs_of(node)]
    (node,) = (each for each in graph.node if each.op == "_Retval")
    while having and node.name not in having and (node.op == "_Retval" or simple.match(node.op)):
        node = nodes[node_of(node.input[0])]
    return having in ([], [node.name])


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


def resources_of(graph: Any) -> list[Any]:
    """The constants of a graph that name resources.

    >>> [each.dtype == tf.resource for each in resources_of(graph_of(tf.data.Dataset.range(3).shuffle(3).cache()))]
    [True, True]
    """
    constants = (node.attr["value"].tensor for node in graph.node if node.op == "Const")
    return [constant for constant in constants if constant.resource_handle_val]


def dataset_of(graph: Any, spec: Any) -> Any:
    """The dataset of a graph, whose elements have this spec.

    >>> numbers = tf.data.Dataset.range(3)
    >>> [int(number) for number in dataset_of(graph_of(numbers), numbers.element_spec)]
    [0, 1, 2]
    """
    return tf.data.experimental.from_variant(tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString()), spec)


def with_own_resources(graph: Any) -> Any:
    """The graph of a dataset with generators of seeds and caches of its own.

    Each is a resource with a name. A dataset makes those that do not exist, and shares those that do.

    >>> numbers = tf.data.Dataset.range(9).shuffle(9, seed=3)
    >>> one, other = (dataset_of(with_own_resources(graph_of(numbers)), numbers.element_spec) for _ in range(2))
    >>> [[*one.as_numpy_iterator()] == [*other.as_numpy_iterator()] for _ in range(2)]
    [True, True]
    """
    own, name = type(graph).FromString(graph.SerializeToString()), secrets.token_hex(8)
    for resource in resources_of(own):
        for handle in resource.resource_handle_val:
            handle.name = f"{handle.name}/{name}"
    return own
