"""Gradients that are products over the examples: reduced first and multiplied then, where memory is shared.

The gradient of a dense layer's kernel is its inputs, transposed, times the gradient of its outputs. The sum of the
replicas' products is the product of all rows at once. So a large kernel's gradient is written once, instead of once
for each replica and again for the sum, for the price of putting the rows one behind the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autodist_core.graph_item import Gradient
from autodist_core.kernel import editor
from autodist_core.kernel.captured import Captured

_ROWS = 256  # as many rows cost about as much to move as the sum of two gradients of the smallest kernels merged


@dataclass(frozen=True)
class Product:
    """A captured matrix product over rows, and the tensors that are multiplied."""

    node: Any
    left: str
    right: str


def products(captured: Captured) -> dict[tuple[str, int], Product]:
    """The gradients that are such products, by variable and occurrence."""
    found = {
        (gradient.variable, gradient.occurrence): product
        for gradient in captured.item.gradients if (product := _product(captured, gradient)) is not None
    }
    return found


def _product(captured: Captured, gradient: Gradient) -> Product | None:
    # A gradient that is weighted afterwards is not the plain sum of the replicas' products.
    shape = captured.variables[gradient.variable].shape
    if gradient.indices or not gradient.weighted or len(shape) != 2 or shape[0] * shape[1] < _ROWS * sum(shape):
        return None
    node = captured.nodes[editor.node_of(gradient.values)]
    while node.op == "Identity":
        node = captured.nodes[editor.node_of(node.input[0])]
    if node.op != "MatMul" or not node.attr["transpose_a"].b or node.attr["transpose_b"].b:
        return None
    left, right = editor.data_inputs(node)
    return Product(node, left, right)
