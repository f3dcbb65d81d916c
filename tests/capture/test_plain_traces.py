"""Capture needs a traced function and its gradients, and no Keras: what it finds in one."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from autodist_core import GraphItem
from autodist_core.capture import capture
from autodist_core.errors import CaptureError
from autodist_core.kernel.analysis.ownership import slots
from autodist_core.kernel.placement.arrangement import optimizer_state
from autodist_core.step.index import StepIndex
from autodist_core.strategy import AllReduce
from tests.capture.plain import SPECS, dense_step, dense_variables, descend, gradients_of, spec_of, trace
from tests.kernel.graphs import assert_as_one_device, dense_item, machine, placed, table_item


def test_a_dense_step():
    item = dense_item()
    assert [(v.name, v.shape, v.dtype, v.trainable, v.is_sparse) for v in item.variables] == [
        ("w", (3, 2), "float64", True, False), ("b", (2,), "float64", True, False)
    ]  # fmt: skip
    assert [(g.variable, g.occurrence, g.indices, g.weighted) for g in item.gradients] == [
        ("w", 0, "", False), ("b", 0, "", False)
    ]  # fmt: skip
    assert [(t.name, t.dtype, t.shape) for t in item.inputs] == [("x", "float64", (None, 3))]
    assert (item.examples, item.total) == ("examples", "total")
    nodes = {node.name: node for node in item.graph_def.node}
    assert all(nodes[v.handle].op == "Placeholder" for v in item.variables)
    assert all(nodes[g.values.removesuffix(":0")].op == "Identity" for g in item.gradients)
    assert len(item.outputs) == 1 and item.outputs[0] in nodes


def test_rows():
    item = table_item()
    assert [(v.name, v.trainable, v.is_sparse) for v in item.variables] == [
        ("table", True, True), ("scale", True, False)
    ]  # fmt: skip
    table, scale = item.gradients
    assert table.indices and table.indices != table.values and not scale.indices


def test_the_update_is_marked_and_nothing_else():
    item = dense_item(times=2)
    marked = {node.name: node.attr["_update"].i for node in item.graph_def.node if "_update" in node.attr}
    writes = [node.name for node in item.graph_def.node if node.op == "AssignSubVariableOp"]
    assert [marked[name] for name in writes] == [0, 0, 1, 1]
    assert not {name for name in marked if "gradient_tape" in name or "MatMul" in name}
    assert not set(marked) & {g.values.removesuffix(":0") for g in item.gradients}
    assert [(g.variable, g.occurrence) for g in item.gradients] == [("w", 0), ("b", 0), ("w", 1), ("b", 1)]


def test_kinds_and_aggregations_are_what_the_front_says():
    variables = dense_variables() | {name: tf.Variable(0, dtype=tf.int64) for name in ("count", "sum", "seed")}
    described = {
        "count": spec_of("count", variables["count"], "optimizer"),
        "sum": spec_of("sum", variables["sum"], "metric", "sum"),
        "seed": spec_of("seed", variables["seed"], "seed", "only_first_replica"),
    }
    trained = {name: variables[name] for name in ("w", "b")}

    def step(tracer, x):
        loss, gradients = gradients_of(trained, x)
        for name in ("sum", "seed"):
            variables[name].assign_add(1)

        def update(handed):
            descend(variables)(handed)
            variables["count"].assign_add(1)

        tracer.apply(gradients, update)
        return [loss]

    item = capture(trace(step, variables, SPECS, described))
    assert [(v.name, v.kind, v.aggregation, v.trainable) for v in item.variables][2:] == [
        ("count", "optimizer", "none", False),
        ("sum", "metric", "sum", False),
        ("seed", "seed", "only_first_replica", False),
    ]
    captured = StepIndex(item)
    assert captured.written_by_compute == {"sum", "seed"}
    assert captured.written_by_update == {"w", "b", "count"}
    assert optimizer_state(captured) == {"count"} and slots(captured) == {}


def test_a_variable_that_the_trace_does_not_read_has_no_handle():
    variables = dense_variables()
    unread = {**variables, "unread": tf.Variable(1.0)}
    item = capture(trace(dense_step(variables), unread))
    assert [bool(variable.handle) for variable in item.variables] == [True, True, False]


def test_slots_belong_to_the_variable_whose_gradient_they_are_made_of():
    variables = dense_variables()
    momenta = {f"slot_{name}": tf.Variable(tf.zeros_like(variable)) for name, variable in variables.items()}
    mixed = {"norm": tf.Variable(0.0, dtype=tf.float64)}

    def step(tracer, x):
        loss, gradients = gradients_of(variables, x)

        def update(handed):
            mixed["norm"].assign(tf.linalg.global_norm(list(handed.values())))
            for name, gradient in handed.items():
                momenta[f"slot_{name}"].assign_add(gradient)
                variables[name].assign_sub(0.1 * momenta[f"slot_{name}"])

        tracer.apply(gradients, update)
        return [loss]

    captured = StepIndex(capture(trace(step, variables | momenta | mixed)))
    assert slots(captured) == {"slot_w": "w", "slot_b": "b"}
    assert optimizer_state(captured) == {"norm"}


def test_identity_n_is_read_past():
    """One such node holds all gradients together, so that each would wait for all."""
    variables = dense_variables()

    def step(tracer, x):
        loss, gradients = gradients_of(variables, x)
        together = tf.raw_ops.IdentityN(input=tf.raw_ops.IdentityN(input=list(gradients.values())))
        tracer.apply(dict(zip(gradients, together, strict=True)), descend(variables))
        return [loss]

    item = capture(trace(step, variables))
    assert [node.op for node in item.graph_def.node].count("IdentityN") == 2
    captured = StepIndex(item)
    for gradient in item.gradients:
        cone = captured.cone([gradient.values.removesuffix(":0")])
        assert "IdentityN" not in {captured.nodes[name].op for name in cone}
    sources = [captured.nodes[g.values.removesuffix(":0")].input[0] for g in item.gradients]
    assert len(set(sources)) == 2 and all("gradient_tape/" in source for source in sources)


def test_constants_from_outside_move_into_the_graph():
    variables, outside = dense_variables(), tf.constant([[1.0], [2.0], [3.0]], tf.float64)

    def step(tracer, x):
        return [x @ outside + 0.0 * variables["b"][0]]

    item = capture(trace(step, variables, concat_outputs=True))
    assert len(item.inputs) == 1
    constants = [node for node in item.graph_def.node if node.op == "Const"]
    found = [tf.make_ndarray(node.attr["value"].tensor) for node in constants]
    assert any(np.array_equal(value, outside) for value in found)
    assert not any(node.op == "Placeholder" and node.name not in ("x", "examples", "total", *(
        v.handle for v in item.variables)) for node in item.graph_def.node)  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True])
def test_a_weighted_gradient_is_not_weighted_again(weighted: bool):
    """The front scaled the loss by n_r / N: the sum over replicas is the whole batch's gradient as it is."""
    variables = dense_variables()

    def step(tracer, x):
        graph = tf.compat.v1.get_default_graph()
        examples, total = (graph.get_tensor_by_name(f"{name}:0") for name in ("examples", "total"))

        def scaled(variables, x):
            loss = tf.reduce_mean(tf.square(x @ variables["w"] + variables["b"]))
            return counted(loss) if weighted else loss

        @tf.custom_gradient
        def counted(loss):
            def backward(upstream):
                tracer.weighting.append(upstream * (examples / total))
                return tracer.weighting[0]

            return tf.identity(loss), backward

        loss, gradients = gradients_of(variables, x, scaled)
        tracer.apply(gradients, descend(variables))
        return [loss]

    item = capture(trace(step, variables))
    assert {gradient.weighted for gradient in item.gradients} == {weighted}
    batches = [np.random.default_rng(8).normal(size=(5, 3))] * 3
    assert_as_one_device(item, placed(item, AllReduce(), machine(cpus=3)), batches)


def test_bytes_hold_everything():
    item = dense_item(times=2)
    again = GraphItem.deserialize(item.serialize())
    assert again == item and again.serialize() == item.serialize()
    assert replace(again, concat_outputs=True) != item


def test_two_gradients_of_one_variable_in_one_apply():
    variables = dense_variables()

    def step(tracer, x):
        loss, gradients = gradients_of(variables, x)
        tracer.apply(gradients, descend(variables))
        tracer.marked.append(replace(tracer.marked[0]))
        return [loss]

    with pytest.raises(CaptureError, match=r"variable 'w' gets two gradients in one apply"):
        capture(trace(step, variables))
