"""Collectives in a function of this process.

In: the nodes of a distributed graph. Out: the same nodes, with numbers that tell their collectives from all others of
this process, and with a token for each. TensorFlow orders the collectives of a device by a resource that each of them
gets, its token; without one, a collective in a function waits for ever.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from autodist_core.step.editor import mark_collectives

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
        tokens = mark_collectives(nodes, self._group, self._number)
        return {name: _token(device) for name, device in tokens.items()}


def _token(device: str) -> Any:
    if device not in _tokens:
        with tf.init_scope(), tf.device(device):
            _tokens[device] = tf.Variable(0.0, trainable=False)
    return _tokens[device].handle
