"""Order between reads and writes, from the times at which nodes touch variables; what an update's writes wait for."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.python.framework import op_def_registry

from autodist_core import GraphItem
from autodist_core.errors import KernelError
from autodist_core.kernel import build
from autodist_core.kernel.passes import barriers
from autodist_core.kernel.passes.order import Order
from autodist_core.step.editor import Editor
from autodist_core.step.naming import node_of
from autodist_core.strategy import PS, AllReduce, PSLoadBalancing
from tests.kernel.graphs import ancestors, layered_item, machine, nodes_of, placed

VARIABLES = ("a", "b", "c")

touching = st.lists(
    st.dictionaries(st.sampled_from(VARIABLES), st.booleans(), min_size=1, max_size=3), min_size=1, max_size=12
)
"""Nodes in the order of their times: which variables each touches, and whether it writes them."""


def _draft(touches: list[dict[str, bool]], positions: list[int], times: list[int]) -> SimpleNamespace:
    """A draft with a node for each entry, added in the order of `positions`; targets are the writers."""
    editor, targets = Editor(), []
    for variable in VARIABLES:
        editor.add("VarHandleOp", variable, dtype=tf.float32)
    for position in positions:
        touched, name = touches[position], f"node{position}"
        editor.add("StatefulPartitionedCall", name, list(touched), order=times[position])
        read_only = [index for index, writes in enumerate(touched.values()) if not writes]
        editor[name].attr["_read_only_resource_inputs"].list.i.extend(read_only)
        if any(touched.values()):
            targets.append(name)
    return SimpleNamespace(editor=editor, targets=targets, steps=[])


@settings(deadline=None, max_examples=150)
@given(touching, st.randoms(use_true_random=False))
def test_every_read_sees_the_last_write_before_it_and_every_write_waits_for_the_reads(touches, random):
    positions = list(range(len(touches)))
    random.shuffle(positions)
    draft = _draft(touches, positions, [3 * position + 1 for position in range(len(touches))])
    Order().apply(draft)
    draft.editor.sources()
    before = {position: ancestors(draft.editor, f"node{position}") for position in positions}
    for late in range(len(touches)):
        for early in range(late):
            conflict = any(touches[early][v] or touches[late][v] for v in touches[early].keys() & touches[late].keys())
            assert not conflict or f"node{early}" in before[late]
        assert not any(f"node{later}" in before[late] for later in range(late, len(touches)))
    assert set().union(*(ancestors(draft.editor, step) for step in draft.steps)) >= set(draft.targets)


@settings(deadline=None, max_examples=50)
@given(touching, st.sampled_from(VARIABLES))
def test_reads_of_one_variable_do_not_wait_for_each_other(touches, variable):
    only_reads = [{variable: False} for _ in touches]
    draft = _draft(only_reads, list(range(len(touches))), list(range(len(touches))))
    Order().apply(draft)
    assert all(list(draft.editor[f"node{position}"].input) == [variable] for position in range(len(touches)))


def test_at_one_time_reads_come_before_the_write():
    draft = _draft([{"a": True}, {"a": False}, {"a": False}], [0, 1, 2], [5, 5, 5])
    Order().apply(draft)
    assert list(draft.editor["node0"].input) == ["a", "^node1", "^node2"]
    assert list(draft.editor["step/0"].input) == ["^node0"]


def test_two_writes_at_one_time_have_no_order():
    draft = _draft([{"a": True}, {"a": True}], [1, 0], [7, 7])
    with pytest.raises(KernelError, match=r"^node0 and node1 both write a at one time\.$"):
        Order().apply(draft)


def test_writes_of_different_variables_at_one_time_are_independent():
    draft = _draft([{"a": True}, {"b": True}], [0, 1], [7, 7])
    Order().apply(draft)
    assert [list(draft.editor[name].input) for name in ("node0", "node1")] == [["a"], ["b"]]


def test_a_touch_without_a_time_is_refused():
    draft = _draft([{"a": True}], [0], [1])
    draft.editor.add("AssignVariableOp", "timeless", ["b", "node0"])
    with pytest.raises(KernelError, match=r"^timeless \(AssignVariableOp\) touches b at no stated time\.$"):
        Order().apply(draft)


def test_ops_that_only_read_are_known():
    editor = Editor()
    editor.add("VarHandleOp", "a", dtype=tf.float32)
    for index, op in enumerate(("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")):
        editor.add(op, f"read{index}", ["a"], order=index)
    editor.add("ResourceScatterSub", "write", ["a"], order=9)
    Order().apply(SimpleNamespace(editor=editor, targets=["write"], steps=[]))
    assert list(editor["write"].input) == ["a", "^read0", "^read1", "^read2", "^read3"]
    assert all(list(editor[f"read{index}"].input) == ["a"] for index in range(4))


def _gradients(item: GraphItem, variable: str) -> set[str]:
    """Each replica's gradients of a variable."""
    values = [node_of(gradient.values) for gradient in item.gradients if gradient.variable == variable]
    return {f"replica{replica}/{name}" for replica in range(2) for name in values}


def _writes(graph: Any, variable: str) -> list[str]:
    handles = {name for name in nodes_of(graph, "VarHandleOp") if name.startswith(f"variable/{variable}.")}
    return [node.name for node in graph.node if node.op == "AssignSubVariableOp" and node.input[0] in handles]


@pytest.mark.parametrize("builder", [PS(), AllReduce(), PSLoadBalancing()])
def test_where_memory_can_run_out_every_write_waits_for_every_gradient(builder: Any):
    item = layered_item()
    graph = build(item, placed(item, builder, machine(gpus=2))).graph_def
    gradients = set().union(*(_gradients(item, variable) for variable in ("first", "second", "third")))
    for variable in ("first", "second", "third"):
        writers = _writes(graph, variable)
        assert writers and all(gradients <= ancestors(graph.node, name) for name in writers)


def test_on_processors_the_last_layer_is_written_while_the_first_ones_gradient_is_computed():
    item = layered_item()
    item = replace(item, gradients=tuple(replace(gradient, weighted=True) for gradient in item.gradients))
    graph = build(item, placed(item, PS())).graph_def
    (writer,) = _writes(graph, "third")
    before = ancestors(graph.node, writer)
    assert _gradients(item, "third") <= before and not _gradients(item, "first") & before


def test_what_is_taken_for_safe_exists():
    assert [name for name in barriers._SAFE_IN_TAPE if op_def_registry.get(name) is None] == []
