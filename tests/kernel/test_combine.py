"""What replicas wrote on the side becomes one state, whichever of them had examples."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.capture import capture
from autodist_core.kernel import build, inference
from autodist_core.kernel.passes.order import Order
from autodist_core.kernel.passes.state_combiner import StateCombiner
from autodist_core.runtime import DistributedSession
from tests.capture.plain import spec_of, trace

NAMES = ("localhost:CPU:0", "localhost:CPU:1", "localhost:CPU:2")


def _item():
    """A step that writes a sum, a moving average, and a counter."""
    variables = {
        "sum": tf.Variable(np.zeros(())), "average": tf.Variable(np.zeros(())),
        "count": tf.Variable(np.zeros((), np.int32)),
    }
    described = {
        "sum": spec_of("sum", variables["sum"], "metric", "sum"), "average": spec_of("average", variables["average"]),
        "count": spec_of("count", variables["count"]),
    }

    def step(tracer, x) -> list:
        variables["sum"].assign_add(tf.reduce_sum(x))
        variables["average"].assign(tf.reduce_mean(x))
        variables["count"].assign_add(1)
        return [tf.identity(x)]

    return capture(trace(step, variables, described=described, concat_outputs=True))


class Copies:
    """Every copy of a session's variables, to be set and read one by one."""

    def __init__(self, session: DistributedSession) -> None:
        self._session = session

    def _each(self, name: str):
        variable = session_variable(self._session, name)
        dtype = tf.as_dtype(variable.dtype)
        with self._session._graph.as_default():
            for copy in self._session.placement.copies(name):
                with tf.device(copy.device):
                    yield dtype, tf.raw_ops.VarHandleOp(dtype=dtype, shape=variable.shape, shared_name=copy.name)

    def set(self, name: str, values) -> None:
        for (dtype, handle), value in zip(list(self._each(name)), values, strict=True):
            with self._session._graph.as_default():
                assign = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(value, dtype))
            self._session._session.run(assign)

    def get(self, name: str) -> list:
        handles = list(self._each(name))
        with self._session._graph.as_default():
            reads = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype) for dtype, handle in handles]
        return [float(value) for value in self._session._session.run(reads)]


def session_variable(session: DistributedSession, name: str):
    return next(variable for variable in session._variables.values() if variable.name == name)


@pytest.mark.parametrize(
    "active, counts, total, average, count",
    [((0, 1, 2), (1, 1, 2), 1007.0, 4.5, 5.0), ((0, 2), (1, 3), 1004.0, 5.5, 5.0), ((1, 2), (3, 1), 1006.0, 4.0, 6.0)],
    ids=["all", "not the middle one", "not the first one"],
)
def test_the_state_is_made_of_the_replicas_that_had_examples(active, counts, total, average, count):
    """Before the step the sum was 1000, which stands on replica 0, whether it has examples or not."""
    item = _item()
    session = DistributedSession(inference(NAMES))
    session.add(item)
    copies = Copies(session)
    sums = [1000.0, 0.0, 0.0]
    for replica, value in zip((0, 1, 2), (1.0, 3.0, 3.0), strict=True):
        sums[replica] += value if replica in active else 0.0
    copies.set("sum", sums)
    copies.set("average", [1.0, 3.0, 7.0])
    copies.set("count", [5, 6, 7])
    graph = build(item, session.placement, active, (StateCombiner(), Order()))
    call = session.import_graph(graph, "combine")
    call(*map(float, counts), float(sum(counts)))
    assert copies.get("sum") == [total, 0.0, 0.0]
    assert copies.get("average") == pytest.approx([average] * 3, rel=1e-14)
    assert copies.get("count") == [count] * 3
    session.close()
