"""What an update's writes wait for: all that can fail."""

from dataclasses import replace
from typing import Any

import pytest
from tensorflow.python.framework import op_def_registry

from autodist_core import GraphItem
from autodist_core.kernel import build
from autodist_core.kernel.passes import barriers
from autodist_core.step.naming import node_of
from autodist_core.strategy import PS, AllReduce, PSLoadBalancing
from tests.kernel.graphs import ancestors, layered_item, machine, nodes_of, placed


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
