"""The distributed training step of a Keras model as a graph, made by the package's own stages; nothing runs."""

from typing import Any

import keras

from autodist_core import ResourceSpec, StrategyCompiler
from autodist_core.kernel import DistributedGraph, build, place
from autodist_core.strategy import StrategyBuilder
from autodist_core.training import Settings, Training
from autodist_keras.capture.tracing import CapturedStep
from autodist_keras.training.batches import read_batch
from autodist_keras.training.step_functions import StepFunction
from tests.support.strategies import strategy_named


def captured(
    model: keras.Model, x: Any, y: Any = None, mode: str = "train", fused_kernels: bool = False
) -> CapturedStep:
    """What is captured of one step of a compiled model."""
    batch = read_batch((x,) if y is None else (x, y))
    settings = Settings(ResourceSpec.local(cpus=2), None, fused_kernels=fused_kernels)
    step, training = getattr(model, f"{mode}_step"), Training(settings)
    return StepFunction(model, step, mode == "predict", training, lambda _: None).captured_for(batch)


def training_graph(
    model: keras.Model, x: Any, y: Any, strategy: str | StrategyBuilder = "AllReduce", *, replicas: int = 2,
    share_memory: bool | None = False, fused_kernels: bool = False,
) -> DistributedGraph:
    """The graph that all replicas run on a batch like this one."""
    spec, item = ResourceSpec.local(cpus=replicas), captured(model, x, y, fused_kernels=fused_kernels).item
    plan = StrategyCompiler(item, spec).compile(strategy_named(strategy).build(item, spec))
    return build(item, place(item, plan, share_memory))


def ops_of(graph: DistributedGraph) -> set[str]:
    """The kinds of its nodes, those in functions too."""
    functions = graph.graph_def.library.function
    return {node.op for node in graph.graph_def.node} | {n.op for function in functions for n in function.node_def}
