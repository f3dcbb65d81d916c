"""The outputs and inputs of a node, as the definition of its operation lists them.

In: a node, and the functions of its graph. Out: for each output or input, the argument of the definition, the position
within that argument, and the type. For a split in two parts::

    (Port("output", 0, tf.float32), Port("output", 1, tf.float32))

A graph numbers the outputs of a node. The body of a function names them: `split:output:1`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.seams.table import OP_DEF

_WITHOUT_EFFECT = {"VarHandleOp", "ReadVariableOp", "Placeholder"}


@dataclass(frozen=True)
class Port:
    """One output or input of a node.

    >>> Port("output", 1, tf.float32)
    Port(argument='output', position=1, dtype=tf.float32)
    """

    argument: str
    position: int
    dtype: tf.DType


def definition_of(node: node_def_pb2.NodeDef, functions: Mapping[str, Any]) -> Any:
    """Return the definition of a node's operation, or the signature of the function that the node calls by its name.

    >>> definition_of(node_def_pb2.NodeDef(op="Neg"), {}).name
    'Neg'
    """
    called = functions.get(node.op)
    return OP_DEF.get()(node.op) if called is None else called.signature


def outputs_of(node: node_def_pb2.NodeDef, functions: Mapping[str, Any]) -> tuple[Port, ...]:
    """Return the outputs of a node in order.

    >>> node = node_def_pb2.NodeDef(op="Neg")
    >>> node.attr["T"].type = tf.float32.as_datatype_enum
    >>> outputs_of(node, {})
    (Port(argument='y', position=0, dtype=tf.float32),)
    """
    return _ports(node, definition_of(node, functions).output_arg)


def inputs_of(node: node_def_pb2.NodeDef, functions: Mapping[str, Any]) -> tuple[Port, ...]:
    """Return the inputs of a node that are tensors, in order.

    >>> node = node_def_pb2.NodeDef(op="AddV2")
    >>> node.attr["T"].type = tf.float32.as_datatype_enum
    >>> [port.argument for port in inputs_of(node, {})]
    ['x', 'y']
    """
    return _ports(node, definition_of(node, functions).input_arg)


def has_effect(node: node_def_pb2.NodeDef, functions: Mapping[str, Any]) -> bool:
    """Whether a node must run though nobody reads its results: it writes, draws, or asserts.

    >>> has_effect(node_def_pb2.NodeDef(op="AssignVariableOp"), {}), has_effect(node_def_pb2.NodeDef(op="Neg"), {})
    (True, False)
    """
    definition = definition_of(node, functions)
    return node.op not in _WITHOUT_EFFECT and definition is not None and bool(definition.is_stateful)


def _ports(node: node_def_pb2.NodeDef, arguments: Iterable[Any]) -> tuple[Port, ...]:
    found: list[Port] = []
    for argument in arguments:
        types = _types(node, argument)
        found += [Port(argument.name, position, tf.as_dtype(dtype)) for position, dtype in enumerate(types)]
    return tuple(found)


def _types(node: node_def_pb2.NodeDef, argument: Any) -> list[int]:
    if argument.type_list_attr:
        return list(node.attr[argument.type_list_attr].list.type)
    count = node.attr[argument.number_attr].i if argument.number_attr else 1
    return [node.attr[argument.type_attr].type if argument.type_attr else argument.type] * count
