"""Let each replica draw its rows of one device's random numbers, so that `verify` compares the same draws.

In: a captured graph, and the draws with a row for each example. Out: the graph in which every replica draws the numbers
of the whole batch, and takes its rows. For a dropout on a replica with rows 5 to 9 of 10::

    uniform([5, 64], seed)  ->  uniform([10, 64], seed)[5:]

The kernels leave the seeds of these draws as they are, and those of draws in a size that is not the batch's
(`kernel.analysis.seeds`). A training draws otherwise: a replica's own stream costs less.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import tensorflow as tf

from autodist_core.capture.batch_axis import Rows, follow
from autodist_core.capture.traced import Traced
from autodist_core.step.editor import Editor
from autodist_core.step.naming import OF_WHOLE_BATCH

_PLAIN = re.compile("Stateless(Random(Uniform|UniformInt|UniformFullInt|Normal)|TruncatedNormal)(V2)?")
"""Draws of which one number needs no other parameters than another one."""


def draws_of_rows(traced: Traced) -> dict[str, int]:
    """The draws of a traced step that have rows for the examples, by the operation's name; and the axis of the rows.

    >>> noise = tf.function(lambda x: tf.random.stateless_normal(tf.shape(x), [1, 2]))
    >>> concrete = noise.get_concrete_function(tf.TensorSpec([None, 3]))
    >>> traced = Traced(concrete.graph, (), concrete.inputs, concrete.outputs, None, None)
    >>> list(draws_of_rows(traced).values())
    [0]
    """
    drawing = [
        operation for operation in traced.graph.get_operations()
        if operation.name not in traced.updates and _PLAIN.fullmatch(operation.type)
    ]
    if not drawing:
        return {}
    found = follow(traced, {})
    # Where the batch is there several times, the rows of a replica are not one behind the other.
    return {
        operation.name: state.axis for operation in drawing for state in [found.state_of(operation.outputs[0])]
        if isinstance(state, Rows) and state.free and state.outer == 1 and state.subset is None
    }


def draw_whole(graph: Editor, rows: Mapping[str, int], replica: str) -> tuple[Editor, tuple[str, ...]]:
    """Return the graph with the draws of the whole batch, and the names of the markers of what is gathered for them.

    `replica` is the placeholder for the replica's number.

    >>> graph = Editor()
    >>> draw_whole(graph, {}, "replica") == (graph, ())
    True
    """
    if not rows:
        return graph, ()
    changed, markers = graph.empty(), []
    for node in graph:
        if node.name not in rows:
            changed.copy_captured(node, node.name, node.input)
            continue
        axis, (shape, *rest) = rows[node.name], node.input
        size = tf.as_dtype(node.attr["Tshape" if "Tshape" in node.attr else "T"].type)
        of_shape, of_numbers = tf.TensorSpec([None], size), tf.as_dtype(node.attr["dtype"].type)
        # The number of this replica's rows, as a vector.
        own = changed.trace(f"{node.name}/own", partial(lambda at, size: size[at : at + 1], axis), {shape: of_shape})[0]
        markers.append(changed.add("Identity", f"{node.name}/rows_of_replicas", [own], T=size))
        given = {markers[-1]: of_shape, shape: of_shape, replica: tf.TensorSpec([], tf.int32)}
        whole, begin = changed.trace(f"{node.name}/bounds", partial(_bounds, axis), given)
        drawn = f"{node.name}/{OF_WHOLE_BATCH}"
        changed.copy_captured(node, drawn, [whole, *rest])
        changed.add("Slice", node.name, [drawn, begin, shape], T=of_numbers, Index=size)
    return changed, tuple(markers)


def _bounds(axis: int, counts: Any, shape: Any, replica: Any) -> tuple[Any, Any]:
    """The shape of the whole batch's numbers, and where this replica's rows begin."""
    along = tf.one_hot(axis, tf.size(shape), dtype=shape.dtype)
    return shape + along * (tf.reduce_sum(counts) - shape[axis]), along * tf.reduce_sum(counts[:replica])
