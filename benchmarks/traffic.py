"""Count in the graph what the hosts of a cluster send to each other in one step, and what they run and keep.

    python benchmarks/traffic.py [--models mlp resnet] [--strategies AllReduce PS] [--replicas 2]

No machine is needed. TensorFlow sends an output once to each device on another host that reads it, and a control edge
as an empty message. The columns of a row:

- `messages`: how many of these there are, and `bytes` those of the messages whose shape is known;
- `unknown`: how many of the messages and of the collectives' inputs have a shape that is known in the step only, such
  as looked-up rows and factors of gradients, or have strings. Their bytes are in no column;
- `collectives`: each counted once for each replica, and `bytes` those of their inputs whose shape is known;
- `operations`: those of all hosts;
- `copies`: the copies of variables on all hosts.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from growth import BUILDERS, captured, measured
from options import command, option
from workloads import WORKLOADS


@dataclass(frozen=True)
class Traffic:
    """What the hosts send to each other in one run of a graph."""

    messages: int
    size: int
    """The bytes of all messages with known shapes."""
    unknown: int
    """The messages and inputs of collectives whose shapes are not known before the run."""
    collectives: int
    collective_size: int
    """The bytes of the inputs of all collectives."""
    operations: int
    copies: int
    """The copies of variables."""


def traffic(graph: tf.Graph) -> Traffic:
    """Return what the hosts send to each other in one run of all operations of a graph.

    >>> with tf.Graph().as_default() as graph:
    ...     with tf.device("/job:run/task:0/device:CPU:0"):
    ...         value = tf.constant([1.0, 2.0])
    ...     with tf.device("/job:run/task:1/device:CPU:0"):
    ...         doubled, negative = value * 2.0, -value
    >>> traffic(graph)
    Traffic(messages=1, size=8, unknown=0, collectives=0, collective_size=0, operations=4, copies=0)
    """
    messages = dict(_messages(graph))
    collectives = [op for op in graph.get_operations() if op.type.startswith("Collective")]
    sizes = [_size(output) for output in messages.values()]
    collected = [_size(op.inputs[0]) for op in collectives]
    return Traffic(
        len(sizes), sum(size or 0 for size in sizes), [*sizes, *collected].count(None),
        len(collectives), sum(size or 0 for size in collected),
        len(graph.get_operations()), sum(op.type == "VarHandleOp" for op in graph.get_operations()),
    )


def _messages(graph: tf.Graph) -> Iterator[tuple[Any, Any]]:
    """The name of each message with the device that receives it, and its output; None for a control edge."""
    for op in graph.get_operations():
        for output in op.inputs:
            if _host(output.op) != _host(op):
                yield (output.name, op.device), output
        for before in op.control_inputs:
            if _host(before) != _host(op):
                yield (before.name, op.device), _EMPTY


_EMPTY = tf.TensorSpec((0,), tf.float32)


def _host(op: Any) -> tuple[Any, Any]:
    device = tf.DeviceSpec.from_string(op.device)
    return device.job, device.task


def _size(output: Any) -> int | None:
    """The bytes of an output; None if its shape is not known, or if it has strings."""
    count = output.shape.num_elements()
    return None if count is None or not output.dtype.size else count * output.dtype.size


def row(model: str, builder: str, found: Traffic) -> str:
    """Return a row of the table.

    >>> row("mlp", "PS", Traffic(2, 4096, 0, 0, 0, 90, 4))
    'mlp        PS                            2        4,096        0           0            0         90      4'
    """
    return (
        f"{model:10} {builder:22} {found.messages:8} {found.size:12,} {found.unknown:8} "
        f"{found.collectives:11} {found.collective_size:12,} {found.operations:10,} {found.copies:6}"
    )


def main() -> None:
    """Print a row for each model and strategy."""
    parser = command(__doc__)
    option(parser, "--models", "some of the models", ["mlp", "resnet"], nargs="+", choices=WORKLOADS)
    option(parser, "--strategies", "some of the builders", BUILDERS, nargs="+", choices=BUILDERS)
    option(parser, "--replicas", "the number of replicas, one on each host", 2, type=int)
    given = parser.parse_args()
    print(
        f"{'model':10} {'strategy':22} {'messages':>8} {'bytes':>12} {'unknown':>8} {'collectives':>11} {'bytes':>12} "
        f"{'operations':>10} {'copies':>6}"
    )
    for name in given.models:
        item = captured(name)
        for builder in given.strategies:
            found = traffic(measured(item, builder, given.replicas, 1).graph)
            print(row(name, builder, found), flush=True)


if __name__ == "__main__":
    main()
