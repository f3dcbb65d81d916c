"""Collectives in a function of this process.

In: the nodes of a distributed graph. Out: the same nodes, with numbers that tell their collectives from all others of
this process, and with a token for each. TensorFlow orders the collectives of a device by a resource that each of them
gets, its token; without one, a collective in a function waits for ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_FIRST = 1 << 20
"""Above the numbers that TensorFlow's own strategies give to groups of devices."""
_groups: dict[tuple[str, ...], int] = {}
"""The number of each group of devices that has collectives. TensorFlow keeps a group for the whole process."""
_tokens: dict[str, Any] = {}
"""The token of each device."""
_numbers = itertools.count(1)


class Collectives:
    """The collectives of one session over these devices.

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
        by_name = {node.name: node for node in nodes.node}
        tokens: dict[str, Any] = {}
        for node in list(nodes.node):
            if node.op == "CollectiveReduceV2":
                _set(by_name[node.input[2]], self._group)
                key = by_name[node.input[3]]
                _set(key, (tf.make_ndarray(key.attr["value"].tensor).item() + self._number) & 0x7FFFFFFF)
                name = f"token{node.device.replace(':', '_')}"
                tokens[name] = _token(node.device)
                inputs = [*node.input[:4], name, *node.input[4:]]
                del node.input[:]
                node.input.extend(inputs)
                node.attr["Nordering_token"].i = 1
        return tokens


def _set(node: Any, value: int) -> None:
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int32))


def _token(device: str) -> Any:
    if device not in _tokens:
        with tf.init_scope(), tf.device(device):
            _tokens[device] = tf.Variable(0.0, trainable=False)
    return _tokens[device].handle
