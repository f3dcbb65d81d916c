"""Whether a dataset can run on other machines and makes the same batches there; if so, its data pipeline.

In: a dataset. Out: its `DataPipeline`, or a ValueError that says why each batch must be fed. The dataset's graph is
read for what lives in the user's process (Python functions, variables), for what may come out differently each time
(random operations, an order that is not fixed), and for what other machines should not do again (writing files).

A shuffle without a seed gets one here, since TensorFlow would draw another one on each machine. TensorFlow saves the
seeds of the current repetition with an iterator, and not the seed from which it draws those of the next. How many seeds
each shuffle has drawn is told to the machines, unless the state of an iterator says it.
"""

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from autodist_core.runtime.composites import is_composite
from autodist_core.runtime.data_pipelines.batches import DataPipeline, Share
from autodist_core.runtime.data_pipelines.by_file import batch_size, by_file
from autodist_core.runtime.data_pipelines.graphs import (
    constant_of,
    dataset_of,
    graph_of,
    inputs_of,
    is_drawn_first,
    with_own_resources,
)
from autodist_core.runtime.data_pipelines.seed_generators import SeedGenerators
from autodist_core.seams.table import OP_DEF
from autodist_core.step.editor import Editor
from autodist_core.step.naming import node_of

_IN_PYTHON = {
    "GeneratorDataset": "from_generator", "PyFunc": "py_function or numpy_function",
    "EagerPyFunc": "py_function", "PyFuncStateless": "numpy_function",
}
_VARIABLES = {"VarHandleOp", "ReadVariableOp", "AssignVariableOp"}
_ELSEWHERE = re.compile("DataService|Snapshot|SaveDataset|WriteFile|AssertNext|Distribute|AutoShard|RebatchDataset$")
"""Datasets that write files, or whose elements depend on other processes."""
_ALLOWED = re.compile(
    "If|While|StatefulPartitionedCall|Assert|CheckNumerics(V2)?$|Print|Dummy(SeedGenerator|MemoryCache)|LookupTable|HashTable"
    "|MatchingFiles|.*Dataset(V[0-9]+)?$"
)
"""Operations that TensorFlow calls stateful and that give the same results everywhere. Datasets are looked at too."""

_ONE_BY_ONE = re.compile(
    "(Options|Prefetch|(Parallel)?Map|(Parallel)?Batch|MapAndBatch|Take|Skip|AssertCardinality)Dataset(V[0-9]+)?$"
)
"""Datasets that make their input's iterator when their own is made."""
_UNKNOWN = tf.data.experimental.UNKNOWN_CARDINALITY


def travelling(
    dataset: Any, say: Callable[[str], None] = lambda _: None, rows: Callable[[int], Sequence[int]] | None = None
) -> tuple[DataPipeline, Any]:
    """The pipeline of a dataset, and the dataset through which the user's process goes: the same, with all seeds set.

    `rows` says how many examples of a batch each machine has, if each is to read its part of the files. The batches are
    then others. A ValueError gives the reason why batches must be fed. `say` is told of a reason that is found later.

    >>> pipeline, same = travelling(tf.data.Dataset.range(5).batch(2))
    >>> pipeline.specs[0].dtype, [batch.numpy().tolist() for batch in same]
    (tf.int64, [[0, 1], [2, 3], [4]])
    >>> travelling(tf.data.Dataset.range(5).map(lambda x: tf.numpy_function(abs, [x], tf.int64)))
    Traceback (most recent call last):
    ValueError: it runs Python functions (py_function or numpy_function)
    """
    options = dataset.options()
    if options.deterministic is False:
        raise ValueError("its order is not fixed (deterministic=False)")
    graph = graph_of(dataset)
    # TensorFlow's order of functions is not fixed. `from_generator` runs Python functions of its own.
    for reason in sorted(_obstacles(graph), key=lambda each: "from_generator" not in each):
        raise ValueError(reason)
    specs = tf.nest.flatten(dataset.element_spec)
    tensors = tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec
    if not specs or not all(isinstance(spec, tensors) and spec.shape.rank is not None for spec in specs):
        raise ValueError("its batches are not dense, ragged or sparse tensors of known rank")
    seeded = _with_seeds(graph)
    if seeded is not None:
        dataset = dataset_of(seeded, dataset.element_spec)
        graph = graph_of(dataset)
    generators = SeedGenerators(graph)
    if generators.are_shared:
        raise ValueError("two of its parts share the seeds of one shuffle")
    # If no seeds are drawn while one goes through it, the iterators that the user's process makes have the seeds of one
    # device, although nobody goes through them.
    once = is_drawn_first(graph, "seed2", _ONE_BY_ONE)
    shares: tuple[Share, ...] = ()
    if rows is not None:
        dataset, shares = _shared_out(dataset, rows, options.experimental_distribute.auto_shard_policy)
        graph, specs = graph_of(dataset), tf.nest.flatten(dataset.element_spec)
        generators = SeedGenerators(graph)
    told = not (once or generators.in_state)
    if told:
        generators.drawn()  # or a ValueError: nobody can read them
    foreseen = _same_known_size(specs) and int(dataset.cardinality()) != _UNKNOWN and once
    return DataPipeline(
        with_own_resources(graph).SerializeToString(), tuple(specs), foreseen,
        any("seed2" in inputs_of(node) for node in graph.node), say, shares, generators if told else None,
    ), dataset


def _shared_out(dataset: Any, rows: Callable[[int], Sequence[int]], policy: Any) -> tuple[Any, tuple[Share, ...]]:
    size = batch_size(dataset)
    if size is None:
        raise ValueError("the size of its batches is not known, so its files are not shared out")
    return by_file(dataset, rows(size), policy)


def _same_known_size(specs: Sequence[Any]) -> bool:
    """Whether each batch has as many examples, and dense tensors of the same shapes."""
    if any(is_composite(spec) for spec in specs):
        return False
    known = all(spec.shape.rank and spec.shape.is_fully_defined() for spec in specs)
    return known and len({spec.shape[0] for spec in specs}) == 1


def _obstacles(graph: Any) -> Iterator[str]:
    """The reasons why a dataset cannot run on other machines, or could make other batches there."""
    outer = {node.name: node for node in graph.node}
    for node in graph.node:
        yield from _of_node(node, outer)
    for function in graph.library.function:
        nodes = {each.name: each for each in function.node_def}
        for node in function.node_def:
            yield from _of_node(node, nodes)
            definition = OP_DEF.get()(node.op)
            if definition is not None and definition.is_stateful and not _ALLOWED.match(node.op):
                yield f"its function has state of its own, such as random numbers ({node.op})"
            if _is_unseeded(node, nodes):
                yield f"its function shuffles or draws without a seed ({node.op})"


def _of_node(node: Any, nodes: Mapping[str, Any]) -> Iterator[str]:
    if node.op in _IN_PYTHON:
        yield f"it runs Python functions ({_IN_PYTHON[node.op]})"
    elif node.op in _VARIABLES:
        yield "it reads variables, as a preprocessing layer with state does"
    elif _ELSEWHERE.match(node.op):
        yield f"it writes files, or other processes make its elements ({node.op})"
    elif node.op.startswith("CacheDataset") and any(constant_of(nodes, name) != b"" for name in node.input[1:2]):
        yield "it keeps a cache in a file"
    elif _has(node, "deterministic", b"false") or _has(node, "sloppy", True):
        yield "its order is not fixed (deterministic=False)"
    elif any(_is_resource(nodes, name) for name in set(node.input) - _stand_ins(node)):
        yield f"it uses a resource of this program ({node.op})"
    elif "seed_generator" in inputs_of(node) and "seed2" not in inputs_of(node):
        yield f"a seed of its own lives in this program ({node.op})"


def _has(node: Any, key: str, value: Any) -> bool:
    """Whether an attribute has a value. To ask a message for a missing attribute would add it."""
    return key in node.attr and value in (node.attr[key].s, node.attr[key].b)


def _is_resource(nodes: Mapping[str, Any], name: str) -> bool:
    source = nodes.get(node_of(name))
    return source is not None and source.op == "Const" and source.attr["dtype"].type == tf.resource.as_datatype_enum


def _stand_ins(node: Any) -> set[str]:
    """The inputs for which a dataset makes a resource of its own: a generator of seeds, a cache in memory."""
    names = inputs_of(node)
    return {node.input[names.index(name)] for name in ("seed_generator", "cache") if name in names}


def _is_unseeded(node: Any, nodes: Mapping[str, Any]) -> bool:
    """Whether an operation draws its seed anew each time: TensorFlow says so by two seeds of zero."""
    names = inputs_of(node)
    if "seed" not in names or "seed2" not in names or "Dataset" not in node.op:
        return False
    return all(constant_of(nodes, node.input[names.index(name)]) == 0 for name in ("seed", "seed2"))


def _with_seeds(graph: Any) -> Any:
    """The graph with random seeds in place of missing ones; None if no seed is missing."""
    nodes = {node.name: node for node in graph.node}
    missing = [node for node in graph.node if _is_unseeded(node, nodes)]
    if not missing:
        return None
    editor = Editor.of(graph)
    for number, node in enumerate(missing):
        inputs = list(node.input)
        for name in ("seed", "seed2"):
            value = 1 + secrets.randbits(62)
            inputs[inputs_of(node).index(name)] = editor.constant(f"{name}/{number}", value, tf.int64, node.device)
        editor.change(node.name, inputs=inputs)
    return editor.graph_def()
