"""Products of examples' rows and large matrices, made for all replicas at once where they share their memory.

The gradient of a dense layer's kernel is its inputs, transposed, times the gradient of its outputs. The sum of the
replicas' products is the product of all rows at once. So a large kernel's gradient is written once, instead of once
for each replica and again for the sum, for the price of putting the rows one behind the other. A product with the
kernel itself has the same rows one behind the other, and the kernel is gone through once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autodist_core.kernel.analysis.shapes import partial_shapes
from autodist_core.step import naming
from autodist_core.step.graph_item import Gradient
from autodist_core.step.index import StepIndex

_ROWS = 256  # as many rows cost about as much to move as the sum of two gradients of the smallest kernels merged


@dataclass(frozen=True)
class Product:
    """A captured matrix product over rows, and the tensors that are multiplied."""

    node: Any
    left: str
    right: str


def products(step: StepIndex) -> dict[tuple[str, int], Product]:
    """The gradients that are such products, by variable and occurrence."""
    found = {
        (gradient.variable, gradient.occurrence): product
        for gradient in step.item.gradients if (product := _product(step, gradient)) is not None
    }
    return found


def with_weights(step: StepIndex) -> frozenset[str]:
    """The nodes of compute that multiply rows by a large matrix which all replicas read alike."""
    return frozenset(
        node.name for node in step.graph.node
        if node.op == "MatMul" and not step.is_update(node.name) and not naming.branch_of(node)
        and not node.attr["transpose_a"].b and not any(map(naming.is_control, node.input))
        and _is_large_weight(step, node.input[1]) and _has_a_row_per_example(step, node.input[0])
    )


def _is_large_weight(step: StepIndex, source: str) -> bool:
    node = step.nodes[naming.node_of(source)]
    while node.op in ("Identity", "Cast"):
        node = step.nodes[naming.node_of(node.input[0])]
    if node.op != "ReadVariableOp" or node.name not in step.touches:
        return False
    variable = step.touches[node.name][0].variable
    return variable in step.trained and _is_large(step.variables[variable].shape)


def _is_large(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] * shape[1] >= _ROWS * sum(shape)


def _has_a_row_per_example(step: StepIndex, source: str) -> bool:
    """Whether a matrix is not one of more rows than there are examples, as of a sequence's: those cost more to move."""
    node = step.nodes[naming.node_of(source)]
    if node.op != "Reshape":
        return True
    before, after = (partial_shapes(step)[naming.canonical(name)] for name in (node.input[0], source))
    return before.rank == 2 or (bool(before.rank) and before[1:].num_elements() == after[1])


def _product(step: StepIndex, gradient: Gradient) -> Product | None:
    # A gradient that is weighted afterwards is not the plain sum of the replicas' products.
    if gradient.indices or not gradient.weighted or not _is_large(step.variables[gradient.variable].shape):
        return None
    node = step.nodes[naming.node_of(gradient.values)]
    while node.op == "Identity":
        node = step.nodes[naming.node_of(node.input[0])]
    if node.op != "MatMul" or not node.attr["transpose_a"].b or node.attr["transpose_b"].b:
        return None
    left, right = naming.data_inputs(node)
    if not _has_a_row_per_example(step, left):
        return None
    return Product(node, left, right)
