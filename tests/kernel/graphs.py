"""What the tests of the kernels share: placements of small steps, and questions about a produced graph."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core import GraphItem, ResourceSpec
from autodist_core.capture import capture
from autodist_core.kernel import Draft, Placement, Tasks, place
from autodist_core.runtime.local.session import LocalSession
from autodist_core.step.naming import node_of
from autodist_core.strategy import AllReduce
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.strategy.compiler import StrategyCompiler
from tests.capture.plain import SPECS, TABLE_SPECS, dense_step, dense_variables, table_step, table_variables, trace
from tests.support.compare import assert_same
from tests.support.machines import machines


def dense_item(times: int = 1, **dtypes: Any) -> GraphItem:
    """A linear model's step."""
    variables = dense_variables(**dtypes)
    return capture(trace(dense_step(variables, times), variables))


def table_item() -> GraphItem:
    """The step of a table whose rows are looked up."""
    variables = table_variables()
    return capture(trace(table_step(variables), variables, TABLE_SPECS))


def tables_item(tables: int, dtype: str = "float64") -> GraphItem:
    """A step that looks rows of several widths up, and that has a vector of numbers, too."""
    random = np.random.default_rng(7)
    shapes = {f"table{index}": (6, 1 + index % 3) for index in range(tables)} | {"numbers": (6,)}
    variables = {
        name: tf.Variable(tf.constant(random.normal(size=shape), dtype), name=name) for name, shape in shapes.items()
    }

    def loss_of(given, ids):
        rows = [tf.nn.embedding_lookup(table, ids + 1) for table in given.values()]
        return tf.add_n([tf.reduce_mean(tf.square(each - 0.5)) for each in rows])

    return capture(trace(dense_step(variables, loss_of=loss_of), variables, TABLE_SPECS))


def copies_item(
    variables: dict[str, tf.Variable], specs: Sequence[tf.TensorSpec] = SPECS, described: Any = None
) -> GraphItem:
    """A step that returns every variable as each replica has it, one after the other: feed one row a replica."""

    def step(tracer, x):
        seen = [tf.repeat(variable.read_value()[None], tf.shape(x)[0], axis=0) for variable in variables.values()]
        for name, variable in variables.items():
            if described is not None and described[name].aggregation == "sum":
                # A step that only reads a summed variable reads the first replica's copy everywhere.
                variable.assign_add(tf.zeros_like(variable))
        return seen

    return capture(trace(step, variables, specs, described, concat_outputs=True))


SHAPES = {"first": (3, 5), "second": (5, 4), "third": (4, 2)}


def layered_variables(**dtypes: str) -> dict[str, tf.Variable]:
    """Three matrices, a scalar and a vector without entries, of float64 unless told otherwise."""
    random = np.random.default_rng(8)
    shapes = SHAPES | {"scale": (), "nothing": (0,)}
    return {
        name: tf.Variable(tf.constant(random.normal(size=shape) * 0.5 + 0.1, dtypes.get(name, "float64")), name=name)
        for name, shape in shapes.items()
    }


def _layered_loss(variables: dict[str, tf.Variable], x: tf.Tensor) -> tf.Tensor:
    for name in SHAPES:
        x = tf.sigmoid(x @ tf.cast(variables[name], x.dtype))
    y = x * tf.cast(variables["scale"], x.dtype) + tf.reduce_sum(tf.cast(variables["nothing"], x.dtype))
    return tf.reduce_mean(tf.square(y - 0.3))


def layered_item(times: int = 1, **dtypes: str) -> GraphItem:
    """A step of the three layers that applies its gradients so many times."""
    variables = layered_variables(**dtypes)
    return capture(trace(dense_step(variables, times, _layered_loss), variables))


def layered_values(**dtypes: str) -> dict[str, np.ndarray]:
    """What their variables begin with."""
    return {name: variable.numpy() for name, variable in layered_variables(**dtypes).items()}


def machine(cpus: int = 2, gpus: int = 0) -> ResourceSpec:
    """This machine with so many devices, which need not be there: building a graph takes none."""
    return ResourceSpec({"nodes": [{"address": "localhost", "cpus": cpus, "gpus": list(range(gpus))}]})


def compiled(item: GraphItem, builder: Any, spec: ResourceSpec) -> CompiledStrategy:
    """A builder's strategy for the step, checked."""
    return StrategyCompiler(item, spec).compile(builder.build(item, spec))


def placed(
    item: GraphItem, builder: Any, spec: ResourceSpec | None = None, share_memory: bool | None = False,
    tasks: Tasks | None = None,
) -> Placement:
    """Where a builder's strategy puts the step."""
    return place(item, compiled(item, builder, spec or machine()), share_memory, tasks)


def placed_on(
    item: GraphItem, builder: Any, *cpus: int, kind: str = "cpus", share_memory: bool | None = False
) -> Placement:
    """Where a builder's strategy puts the step on machines with so many devices each."""
    spec = machines(*cpus, kind=kind)
    return placed(item, builder, spec, share_memory, Tasks("run", tuple(each.address for each in spec.nodes)))


def draft_of(item: GraphItem, builder: Any, spec: ResourceSpec | None = None) -> Draft:
    """An empty draft of a step under a builder's strategy."""
    return Draft.of(item, placed(item, builder, spec))


def nodes_of(graph_def: Any, op: str) -> dict[str, Any]:
    """The nodes of an op, by name."""
    return {node.name: node for node in graph_def.node if node.op == op}


def imported(graph_def: Any) -> tf.Graph:
    """A graph with the shapes that TensorFlow infers."""
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    return graph


def summed(graph_def: Any, nodes: Sequence[Any]) -> list[tf.Tensor]:
    """What enters these collectives."""
    graph = imported(graph_def)
    return [graph.get_operation_by_name(node.name).inputs[0] for node in nodes]


def constant(graph_def: Any, name: str) -> np.ndarray:
    """The value of a constant."""
    return tf.make_ndarray(next(node for node in graph_def.node if node.name == name).attr["value"].tensor)


def ancestors(nodes: Any, name: str) -> set[str]:
    """Everything that has run before a node does."""
    by_name = {node.name: node for node in nodes}
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        for source in map(node_of, by_name[waiting.pop()].input):
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    return seen


def train(item: GraphItem, placement: Placement, values: dict, batches: list) -> dict:
    """The variables after a step on each batch, and the outputs of the last one under `outputs`."""
    session = LocalSession(placement)
    step = session.add(item)
    session.load(values)
    outputs = [step([batch], len(batch)) for batch in batches]
    result = session.read(session.known) | {"outputs": np.array(outputs[-1])}
    session.close()
    return result


def assert_as_one_device(
    item: GraphItem, placement: Placement, batches: list, values: dict[str, np.ndarray] | None = None
) -> dict:
    """What `train` gives, from values by chance unless they are given, is what one device gives. Gives it, too."""
    if values is None:
        random = np.random.default_rng(2)
        values = {variable.name: random.normal(size=variable.shape) for variable in item.variables}
    found = train(item, placement, values, batches)
    assert_same(train(item, placed(item, AllReduce(), machine(cpus=1)), values, batches), found)
    return found
