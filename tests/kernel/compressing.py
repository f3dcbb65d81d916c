"""What the tests of the compressors share: builders, steps with one gradient, and what replicas send and keep."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from autodist_core import GraphItem
from autodist_core.capture import capture
from autodist_core.kernel import build
from autodist_core.runtime.local.session import LocalSession
from autodist_core.strategy import AllReduce
from tests.capture.plain import dense_step, trace
from tests.kernel.graphs import machine, nodes_of, placed, summed

WIRES = {"float16": np.float16, "bfloat16": tf.bfloat16.as_numpy_dtype}
HALF = [
    AllReduce(compressor=compressor, wire_dtype=wire)
    for compressor in ("HorovodCompressor", "HorovodCompressorEF") for wire in WIRES
]  # fmt: skip
EXACT, CAST, FEEDBACK = AllReduce(), HALF[0], HALF[2]


def power(rank: int, **options) -> AllReduce:
    return AllReduce(compressor="PowerSGDCompressor", power_sgd_rank=rank, **options)


def name_of(value: AllReduce | dict | int) -> str:
    """A short id of a builder, or of variables' types besides float64."""
    if isinstance(value, AllReduce):
        detail = value.power_sgd_rank if value.compressor == "PowerSGDCompressor" else value.wire_dtype
        return f"{value.compressor} {detail}"
    return "+".join(["float64", *value.values()]) if isinstance(value, dict) else str(value)


def linear_item(shape: tuple[int, ...], dtype: str = "float64", times: int = 1, name: str = "w") -> GraphItem:
    """A step whose gradient is the mean of the batch's rows, each of the variable's shape, whatever the weights are."""
    variables = {name: tf.Variable(tf.zeros(shape, dtype))}

    def loss(variables, x):
        return tf.reduce_sum(tf.reduce_mean(x, axis=0) * variables[name])

    step = dense_step(variables, times, loss)
    return capture(trace(step, variables, [tf.TensorSpec((None, *shape), dtype, "x")]))


class Replicas:
    """A session of a one-variable step, and what it holds after some batches."""

    def __init__(self, item: GraphItem, builder: AllReduce, cpus: int = 2) -> None:
        self.session = LocalSession(placed(item, builder, machine(cpus)))
        self.step = self.session.add(item)
        (self.name,) = (variable.name for variable in item.variables)
        self.session.load({v.name: np.zeros(v.shape, v.dtype) for v in item.variables})

    def run(self, *batches: np.ndarray) -> np.ndarray:
        """The variable after these batches."""
        for batch in batches:
            self.step([batch], len(batch))
        return self.session.read([self.name])[self.name]

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()


def kept(session: LocalSession, what: str, name: str = "w") -> np.ndarray:
    """What each replica keeps, one behind the other."""
    values = session.read_added()
    names = [f"compressor/{what}/{name}@replica{index}" for index in range(len(session.placement.replicas))]
    return np.stack([values[name] for name in names])


def sent_by(item: GraphItem, builder: AllReduce, cpus: int = 2, active: int | None = None) -> list[tf.Tensor]:
    """What replica 0 puts into collectives."""
    graph = build(item, placed(item, builder, machine(cpus)), active).graph_def
    found = nodes_of(graph, "CollectiveReduceV2").values()
    return summed(graph, [node for node in found if "replica0" in node.name])


def after_steps(builder: AllReduce, batch: np.ndarray, steps: int) -> np.ndarray:
    with Replicas(linear_item(batch.shape[1:]), builder) as replicas:
        return replicas.run(*[batch] * steps)
