"""Find the operations of compute that XLA can compile.

In: the index of a captured step. Out: the nodes that XLA can compile, and those that it cannot. For a model that begins
with a lookup of words::

    names      {"dense/MatMul", "dense/BiasAdd", ..., "gradient_tape/dense/MatMul"}
    refused    {"hash/StringToHashBucketFast"}
    outside    ("hash/StringToHashBucketFast",)

XLA can compile an operation for which TensorFlow registers a kernel of XLA's, for the types of the operation, and which
has no effects: no variable, no table, no string, no list comes from outside or goes there. A loop must consist of such
operations. An assertion stays outside, since XLA leaves it out. So do stateful draws of random numbers, which have no
seed under XLA, and operations whose results have sizes that depend on values: XLA would compile anew for each size.

Some operations XLA can compile in some places only, such as a range whose end is computed from the batch. So the pieces
are translated for XLA once, on a small batch, and an operation that XLA names in an error stays outside.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from autodist_core.kernel.analysis.shapes import imported
from autodist_core.seams.table import KERNELS
from autodist_core.step import naming
from autodist_core.step.draws import function_references
from autodist_core.step.editor import Editor
from autodist_core.step.graph_check import in_order, sources_of
from autodist_core.step.index import StepIndex, analysis
from autodist_core.step.op_types import CALLS, OF_SHAPES
from autodist_core.step.ports import definition_of, inputs_of, outputs_of

SMALLEST = 8
"""A piece of fewer operations is not worth a call of its own."""
_ROWS = (4, 60, 64, 420)
"""The examples of the batch on which the pieces are translated: the first of these that the model takes."""
_GUESS = 60
"""The size of an axis for which no shape is known."""
_NEEDS_CONSTANT = "must be a compile-time constant"
_TRIALS = 16
_LEFT_OUT = {"Assert", "CheckNumerics", "CheckNumericsV2", "EnsureShape", "Placeholder", "NoOp", "VarHandleOp"}
_ON_VARIABLES = ("ReadVariableOp", "VariableShape", "Assign", "ResourceApply", "ResourceGather", "ResourceScatter")
"""How the operations begin that read and write a variable, and for which XLA may have kernels."""
_UNNAMED = {"Const", "Identity", "NoOp", "Placeholder"}
_SIZES_FROM_VALUES = {
    "Where", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "DynamicPartition", "ListDiff",
    "NonMaxSuppressionV3", "NonMaxSuppressionV4", "NonMaxSuppressionV5",
}
_NAMED = re.compile(r"\{\{node ([^}]+)\}\}")


@dataclass(frozen=True)
class Compilable:
    """Which nodes of compute XLA can compile.

    >>> from autodist_core.capture.example import example_step
    >>> found = compilable(StepIndex(example_step()))
    >>> "matmul" in found.names, "gradient_tape/Shape" in found.of_shapes, "matmul" in found.of_shapes
    (True, True, False)
    """

    names: frozenset[str]
    of_shapes: frozenset[str]
    """Those whose values depend on shapes alone. Each piece computes the ones that it reads."""
    outside: tuple[str, ...]
    """The operations that it cannot, in order; without reads and writes of variables, and without inputs."""
    outside_of_update: tuple[str, ...]
    """The operations of the update that it cannot compile together with compute."""
    refused: frozenset[str]
    """All nodes of compute and of the update that may be in no piece, not even in one that writes variables."""


@analysis
def compilable(step: StepIndex) -> Compilable:
    """Return the nodes of compute that XLA can compile.

    >>> from autodist_core import GraphItem
    >>> @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
    ... def total(x):
    ...     return tf.reduce_sum(tf.abs(x), name="total"), tf.strings.as_string(x, name="text")
    >>> graph = total.get_concrete_function().graph.as_graph_def()
    >>> item = GraphItem((), outputs=("total", "text"), graph_bytes=graph.SerializeToString())
    >>> found = compilable(StepIndex(item))
    >>> sorted(found.names), found.outside
    (['Abs', 'Identity', 'total'], ('text',))
    """
    compute = [node for node in step.graph.node if not step.is_update(node.name)]
    functions = step.functions.functions
    kept = {*step.item.over_replicas, *step.markers, step.item.examples, step.item.total, step.item.replica}
    kept |= step.touches.keys() | {tensor.name for tensor in step.item.inputs}
    known = {
        node.name for node in compute
        if node.name not in kept and node.op != "Const" and not naming.branch_of(node) and has_kernel(node, functions)
    }
    known = _without_crossing_lists(step, known)
    known = _translated(step, known)
    trivial = kept | step.handle_of.keys() | step.tables
    outside = [
        node.name for node in compute
        if node.name in step.alive and node.name not in known | trivial and node.op not in _UNNAMED
    ]
    able = {
        name for name in step.update_of.keys() | step.touches.keys()
        if not naming.branch_of(step.nodes[name]) and has_kernel(step.nodes[name], functions, variables=True)
    }
    on_variables = able & step.touches.keys()
    able = on_variables | _translated(step, able - on_variables)
    outside_of_update = step.in_order(
        name for name in step.alive
        if step.is_update(name) and name not in able and step.nodes[name].op not in _UNNAMED
    )
    refused = step.nodes.keys() - known - able - (kept - step.touches.keys())
    return Compilable(
        frozenset(known), frozenset(_of_shapes(step, known)), tuple(outside), tuple(outside_of_update),
        frozenset(refused),
    )  # fmt: skip


@cache
def _types_of_kernels(op: str) -> tuple[dict[str, frozenset[int]], ...]:
    """Return for each of XLA's kernels of an operation the types that it takes, by attribute."""
    _register()
    return tuple(
        {each.name: frozenset(each.allowed_values.list.type) for each in kernel.constraint}
        for kernel in KERNELS.get()(op).kernel if kernel.device_type == "XLA_CPU_JIT"
    )


@cache
def _register() -> None:
    """Let TensorFlow register XLA's kernels, which it does when XLA first compiles."""
    with tf.init_scope():
        tf.function(lambda: tf.zeros(()), jit_compile=True, autograph=False)()


def has_kernel(node: Any, functions: Mapping[str, Any], variables: bool = False) -> bool:
    """Whether XLA has a kernel for a node, for its types. With `variables`, the node may read and write variables.

    >>> from tensorflow.core.framework import node_def_pb2
    >>> [has_kernel(node_def_pb2.NodeDef(op=op), {}) for op in ("LogicalAnd", "StringJoin", "NoOp")]
    [True, False, False]
    """
    definition = definition_of(node, functions)
    if definition is None or node.op in _LEFT_OUT or node.op in _SIZES_FROM_VALUES:
        return False
    bodies = [functions[node.op]] if node.op in functions else []
    bodies += [functions[each.name] for each in function_references(node) if each.name in functions]
    if bodies:
        if not all(each.op == "Const" or has_kernel(each, functions) for body in bodies for each in body.node_def):
            return False
        return node.op in functions or node.op in CALLS or bool(_types_of_kernels(node.op))
    on_variable = variables and node.op.startswith(_ON_VARIABLES)
    if definition.is_stateful and not on_variable:
        return False
    types = {port.dtype for port in (*inputs_of(node, functions), *outputs_of(node, functions))}
    if tf.string in types or (tf.resource in types and not on_variable):
        return False
    return any(
        all(name not in node.attr or not node.attr[name].type or node.attr[name].type in allowed
            for name, allowed in kernel.items())
        for kernel in _types_of_kernels(node.op)
    )


@analysis
def exchanged_lists(step: StepIndex) -> list[tuple[str, str]]:
    """Return which node makes a list for which other one: a function that XLA compiles does not hand lists over.

    >>> from autodist_core.capture.example import example_step
    >>> exchanged_lists(StepIndex.of(example_step()))
    []
    """
    functions = step.functions.functions
    return [
        (naming.node_of(source), node.name) for node in step.graph.node
        for source, port in zip(naming.data_inputs(node), inputs_of(node, functions), strict=True)
        if port.dtype == tf.variant
    ]


def _without_crossing_lists(step: StepIndex, known: set[str]) -> set[str]:
    """Leave out the nodes that exchange lists with nodes of another piece, or with other nodes."""
    edges = exchanged_lists(step)
    while True:
        piece = {name: number for number, names in enumerate(_pieces(step, known)) for name in names}
        crossing = {
            name for edge in edges if len({piece.get(name, -1) for name in edge}) > 1 for name in edge if name in known
        }
        if not crossing:
            return known
        known = known - crossing


def compilable_pieces(
    sources: Mapping[str, Collection[str]], known: Collection[str], constants: Collection[str],
    stages: Mapping[str, int] = MappingProxyType({}),
) -> list[list[str]]:
    """Return the pieces of nodes that XLA can compile. A constant that waits for a node does not end a piece.

    Functions get copies of the constants that they read, which wait for nothing.

    >>> graph = {"a": [], "constant": ["a"], "b": ["a", "constant"], "string": ["b"], "c": ["string"]}
    >>> compilable_pieces(graph, {"a", "b", "c"}, {"constant"})
    [['a', 'b'], ['c']]
    """
    found = pieces(sources, {*known, *constants}, stages)
    without = ([name for name in names if name not in constants] for names in found)
    return [names for names in without if names]


def _pieces(step: StepIndex, known: set[str]) -> list[list[str]]:
    constants = {node.name for node in step.graph.node if node.op == "Const"}
    return compilable_pieces(sources_of(step.nodes), known, constants)


def _of_shapes(step: StepIndex, known: set[str]) -> set[str]:
    """Return the nodes whose values depend on shapes alone: XLA knows these values when it compiles."""
    found: set[str] = set()
    for node in step.graph.node:
        before = [naming.node_of(source) for source in naming.data_inputs(node)]
        if node.name in known and (
            node.op in OF_SHAPES or (before and all(n in found or step.nodes[n].op == "Const" for n in before))
        ):
            found.add(node.name)
    return found


def _translated(step: StepIndex, known: set[str]) -> set[str]:
    """Leave out the nodes that XLA names in an error when the pieces are translated for it."""
    # A step that was captured for batches of one size may have that size in its constants.
    fixed = {shape[0] for shape in step.rows.values() if shape[0] is not None}
    graph = next((found for rows in (*fixed, *_ROWS) if (found := _with_a_small_batch(step, rows))), None)
    if graph is None:
        return known
    for _ in range(_TRIALS):
        failed: set[str] = set()
        of_shapes = _of_shapes(step, known)
        for names in _pieces(step, known):
            # A small piece here may be a part of a large one that has reads and writes of variables, too.
            error = _error_of(step, graph, names, of_shapes)
            if error:
                failed |= {name for name in _NAMED.findall(error) if name in names} or set(names)
        if not failed:
            break
        known = known - failed
    return known


def _with_a_small_batch(step: StepIndex, rows: int) -> tf.Graph | None:
    """Return the captured graph for a batch of a few examples; None if it takes no batch of this size."""
    try:
        return imported(step, rows)
    except ValueError:
        return None


def _error_of(step: StepIndex, whole: tf.Graph, names: list[str], of_shapes: set[str]) -> str:
    """Return the error with which XLA refuses to translate a piece; empty if it does not, or if a rank is unknown.

    Where sizes are unknown, the piece is translated for guessed ones. Then only that error counts which does not depend
    on sizes: a value is needed when XLA compiles, and is computed by the piece.
    """
    piece = Editor(step.graph.library, step.graph.versions)
    inside, queue, arguments, guessed = set(names), list(names), dict[str, tf.TensorSpec](), False
    for name in queue:
        inputs = []
        for source in naming.data_inputs(step.nodes[name]):
            origin, output = naming.split(source)
            if origin not in inside and (origin in of_shapes or step.nodes[origin].op == "Const"):
                inside.add(origin)
                queue.append(origin)
            argument = f"argument/{naming.label(source)}"
            if origin not in inside and argument not in arguments:
                tensor = whole.get_tensor_by_name(f"{origin}:{output}")
                guessed = guessed or not tensor.shape.is_fully_defined()
                if tensor.shape.rank is None:
                    return ""
                shape = [_GUESS if size is None else size for size in tensor.shape]
                arguments[argument] = tf.TensorSpec(shape, tensor.dtype)
                piece.add("Placeholder", argument, dtype=tensor.dtype, shape=tf.TensorShape(shape))
            inputs.append(source if origin in inside else argument)
        piece.copy(step.nodes[name], name, inputs, "")
    error = _translation_error(piece.graph_def(), names, arguments)
    return error if not guessed or _NEEDS_CONSTANT in error else ""


def _translation_error(graph: Any, names: list[str], arguments: Mapping[str, tf.TensorSpec]) -> str:
    try:
        with tf.init_scope():
            imported = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph, name=""), [])
            tensors = [tensor for name in names for tensor in imported.graph.get_operation_by_name(name).outputs]
            body = imported.prune(
                [imported.graph.get_tensor_by_name(f"{argument}:0") for argument in arguments],
                [tensor for tensor in tensors if tensor.dtype != tf.variant],
            )
            function = tf.function(lambda *values: body(*values), jit_compile=True, autograph=False)
            function.experimental_get_compiler_ir(*arguments.values())(stage="hlo")
    except (ValueError, tf.errors.OpError) as error:
        return str(error)
    return ""


def pieces(
    sources: Mapping[str, Collection[str]], inside: Collection[str], stages: Mapping[str, int] = MappingProxyType({}),
) -> list[list[str]]:
    """Divide nodes into pieces that can each run as one: no other node stands between two of a piece.

    Each piece is in an order in which its nodes can run, and so are the pieces.

    `sources` has the nodes before each node of the graph, `stages` the numbers of nodes' stages, which are 0 for all
    others. For a lookup of words (B) between dense layers (A, C, D)::

        A -> B -> C -> D      A, C and D may be in a piece      [A], [C, D]

    The level of a node is the largest number of ways out of a piece on the way to it. A way that leaves a piece ends at
    a higher level, and so never comes back to the piece. Stages divide the nodes of a level further: no node may need
    the value of a node of a later stage.

    >>> graph = {"a": [], "b": ["a"], "c": ["b", "a"], "d": ["c"], "e": ["d"]}
    >>> pieces(graph, {"a", "c", "d", "e"})
    [['a'], ['c', 'd', 'e']]
    >>> pieces(graph, {"a", "c", "d", "e"}, {"e": 1})
    [['a'], ['c', 'd'], ['e']]
    """
    level: dict[str, int] = {}
    found: dict[tuple[int, int], list[str]] = {}
    for name in in_order(sources):
        highest, own = 0, name in inside
        for source in sources[name]:
            there = level[source] + (not own and source in inside)
            if there > highest:
                highest = there
        level[name] = highest
        if own:
            found.setdefault((highest, stages.get(name, 0)), []).append(name)
    return [found[key] for key in sorted(found)]
