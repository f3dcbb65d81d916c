"""Give each replica's copies of the operations that draw random numbers a stream of the replica's own.

In: a replica's copy of a captured node. Out: the same node with another seed, if it draws random numbers. For a draw
with the seed `s` on replica 1::

    StatelessRandomUniformV2(s)  ->  StatelessRandomUniformV2(BitwiseXor(s, mask(1)))

Replica 0 draws the numbers of one device: its copies stay as captured. The copies of every other replica differ in
their seeds only. A number that depends on the replica alone is added to the seed of a stateful operation. The seed or
the key of a stateless operation is combined with such a number by exclusive or. Two draws of the same numbers on one
device are two draws of the same numbers on each replica, too: a backward pass that computes its forward pass again
needs that. The state of a seed generator is equal on all replicas, and the numbers that are drawn from it differ.
A draw whose seed is its own stays as captured (see `kernel.analysis.seeds`).

A function is copied for a replica only if it draws such numbers, or runs a function that does.
"""

import zlib

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from autodist_core.kernel.analysis.seeds import seeded_alone
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.placement.placement import Replica
from autodist_core.step.draws import Stream, function_references, seed_input, seed_type, stream_of
from autodist_core.step.editor import Editor
from autodist_core.step.index import StepIndex

_SEED_STEP = 1_000_003
_GOLDEN = 0x9E3779B97F4A7C15
_CHANGED = (Stream.ATTRIBUTE, Stream.INPUT)


def take_own_stream(draft: Draft, name: str, replica: Replica, captured: str) -> None:
    """Let a replica's copy of a captured node, and the functions that it runs, draw from the replica's stream.

    `name` is the copy, and `captured` the node.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> for replica in draft.active_replicas:
    ...     name = draft.editor.add("RandomUniform", f"{replica.prefix}/draw", ["shape"], seed=7, seed2=1)
    ...     take_own_stream(draft, name, replica, "draw")
    >>> [draft.editor[name].attr["seed2"].i for name in ("replica0/draw", "replica1/draw")]
    [1, 1000004]
    """
    if replica.index:
        _change(draft, draft.editor, draft.editor[name], replica, (captured,))


def follows_from_number(step: StepIndex) -> bool:
    """Whether all that is different in a replica's draws are constants of the graph: `mask` of the replica's number.

    It is not if a seed is an attribute, or if a draw is in a function, of which each replica has a copy then.

    >>> from autodist_core.capture.example import example_step
    >>> follows_from_number(StepIndex.of(example_step()))
    True
    """
    alone = seeded_alone(step)
    changed = [
        draw for drawn in step.draws.values() for draw in drawn if draw.stream in _CHANGED and draw.path not in alone
    ]
    return not changed or (
        not step.item.jit_compile and all(draw.stream is Stream.INPUT and len(draw.path) == 1 for draw in changed)
    )


def mask(replica: int, dtype: tf.DType) -> np.ndarray:
    """Return the number with which a replica's seeds and keys of a type are combined; it is 0 for the first replica.

    >>> mask(0, tf.int32).item(), mask(1, tf.int32).item(), mask(2, tf.uint64).item()
    (0, 2135587861, 4354685564936845354)
    """
    bits = 8 * dtype.size
    return np.array(replica * _GOLDEN % (1 << bits), f"uint{bits}").astype(dtype.as_numpy_dtype)


def stream_of_replica(name: str) -> str:
    """Return the name of the node that makes the seed or the key of a replica's copy of a stateless draw.

    >>> stream_of_replica("replica1/dropout/random_uniform")
    'replica1/dropout/random_uniform/stream'
    """
    return f"{name}/stream"


def _change(draft: Draft, graph: Editor, node: node_def_pb2.NodeDef, replica: Replica, path: tuple[str, ...]) -> None:
    """Change a copy of the node at a path: a node of the step, and the nodes that follow in functions' bodies."""
    stream = None if path in seeded_alone(draft.step) else stream_of(node)
    if stream is Stream.ATTRIBUTE:
        graph.change(node.name, seed2=node.attr["seed2"].i + _SEED_STEP * replica.number)
    elif stream is Stream.INPUT:
        position, dtype = seed_input(node.op), seed_type(node)
        name, value, inputs = f"{node.name}/replica", mask(replica.number, dtype), list(node.input)
        both = inputs[position], graph.add("Const", name, (), node.device, dtype=dtype, value=value)
        inputs[position] = graph.add("BitwiseXor", stream_of_replica(node.name), both, node.device, T=dtype)
        graph.change(node.name, inputs=inputs)
    graph.rename_functions(function_references(node), lambda name: _function(draft, name, replica, path))
    if node.op in draft.step.functions.functions:
        graph.change(node.name, _function(draft, node.op, replica, path))


def _function(draft: Draft, name: str, replica: Replica, path: tuple[str, ...]) -> str:
    """The function that the node at a path runs on a replica in a function's place: a copy if it draws.

    Calls of one function may differ in whether its draws have seeds of their own. Each kind of call gets a copy.
    """
    functions, alone = draft.step.functions, seeded_alone(draft.step)
    draws = [draw for draw in functions.inside(name) if draw.stream in _CHANGED]
    kept = [draw.path for draw in draws if (*path, *draw.path) in alone]
    if len(kept) == len(draws):
        return name
    kind = f"_{zlib.crc32(repr(kept).encode()):08x}" if kept else ""
    return draft.editor.copy_function(
        functions.functions[name], f"{name}__{replica.prefix}{kind}",
        lambda body, node: _change(draft, body, node, replica, (*path, node.name)),
    )
