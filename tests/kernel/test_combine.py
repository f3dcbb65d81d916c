"""What replicas wrote on the side becomes one state, whichever of them had examples."""

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.capture import capture
from autodist_core.kernel import build, inference, packing
from autodist_core.kernel.passes.order import Order
from autodist_core.kernel.passes.state_combiner import StateCombiner
from autodist_core.runtime.local.session import LocalSession
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

    def __init__(self, session: LocalSession) -> None:
        self._session = session

    def _handles(self, name: str) -> list:
        return [self._session.copies.handle(copy.name) for copy in self._session.placement.copies(name)]

    def set(self, name: str, values) -> None:
        dtype = tf.as_dtype(session_variable(self._session, name).dtype)
        for handle, value in zip(self._handles(name), values, strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(value, dtype))

    def get(self, name: str) -> list:
        return [float(value) for value in self.whole(name)]

    def whole(self, name: str) -> list:
        dtype = tf.as_dtype(session_variable(self._session, name).dtype)
        return [tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy() for handle in self._handles(name)]


def session_variable(session: LocalSession, name: str):
    return session.copies.variables[name]


@pytest.mark.parametrize(
    "active, counts, total, average, count",
    [((0, 1, 2), (1, 1, 2), 1007.0, 4.5, 5.0), ((0, 2), (1, 3), 1004.0, 5.5, 5.0), ((1, 2), (3, 1), 1006.0, 4.0, 6.0)],
    ids=["all", "not the middle one", "not the first one"],
)
def test_the_state_is_made_of_the_replicas_that_had_examples(active, counts, total, average, count):
    """Before the step the sum was 1000, which stands on replica 0, whether it has examples or not."""
    item = _item()
    session = LocalSession(inference(NAMES))
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


SHAPES = {"sum": ((), (2, 3)), "mean": ((3,), ()), "max": ((2,), (1, 2)), "min": ((), (4,)), "first": ((2,), (2, 1))}


def _item_of_pairs():
    """A step that writes two variables of unlike shapes for each way in which values are combined."""
    variables, described = {}, {}
    for way, shapes in SHAPES.items():
        for number, shape in enumerate(shapes):
            name = f"{way}{number}"
            aggregation = "only_first_replica" if way == "first" else way
            variables[name] = tf.Variable(np.zeros(shape))
            described[name] = spec_of(name, variables[name], "metric", aggregation)

    def step(tracer, x) -> list:
        for variable in variables.values():
            variable.assign_add(tf.ones_like(variable))
        return [tf.identity(x)]

    return capture(trace(step, variables, described=described, concat_outputs=True))


@pytest.mark.quick("active0-counts0", "active2-counts2")
@pytest.mark.parametrize("active, counts", [((0, 1, 2), (1, 1, 2)), ((0, 2), (1, 3)), ((1, 2), (3, 1)), ((1,), (4,))])
def test_small_variables_over_hosts_travel_together_and_get_the_values_that_they_get_alone(monkeypatch, active, counts):
    item = _item_of_pairs()
    states = []
    for over_hosts in (False, True):
        monkeypatch.setattr(packing, "apart", lambda devices, over_hosts=over_hosts: over_hosts)
        session = LocalSession(inference(NAMES))
        session.add(item)
        copies, drawn = Copies(session), np.random.default_rng(5)
        names = [f"{way}{number}" for way, shapes in SHAPES.items() for number in range(len(shapes))]
        before = {name: drawn.normal(size=(3, *session_variable(session, name).shape)) for name in names}
        for name in names:
            copies.set(name, before[name])
        graph = build(item, session.placement, active, (StateCombiner(), Order()))
        packed = {node.name.split("/")[2] for node in graph.graph_def.node if node.name.startswith("combine/packed/")}
        assert packed == ({*SHAPES} if over_hosts else set())
        session.import_graph(graph, "combine")(*map(float, counts), float(sum(counts)))
        states.append({name: copies.whole(name) for name in names})
        session.close()
    alone, together = states
    for name in names:
        np.testing.assert_array_equal(together[name], alone[name])
        assert not np.array_equal(alone[name], before[name])
