"""Find matrix products that replicas with shared memory can compute as one product, over the rows of all replicas.

In: the index of a captured step. Out: gradients that are such products, and products with large weights. For a dense
layer with a large kernel, two replicas with inputs `x0` and `x1` and output gradients `d0` and `d1`::

    AddN(MatMul(x0', d0), MatMul(x1', d1))  ->  MatMul([x0, x1]', [d0, d1])
    MatMul(x0, w), MatMul(x1, w)            ->  MatMul([x0, x1], w), split into the replicas' rows

The sum of the replicas' products is the product of all rows. A large gradient is then written once, and not once for
each replica and once more for the sum. A large kernel is read once. The cost is a copy of the rows.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from autodist_core.kernel.analysis.shapes import partial_shapes
from autodist_core.step import naming
from autodist_core.step.graph_item import Gradient
from autodist_core.step.index import StepIndex
from autodist_core.strategy.factor_rows import LARGE


@dataclass(frozen=True)
class Product:
    """A captured matrix product over rows, and its two factors.

    >>> from dataclasses import replace
    >>> from autodist_core.capture import capture
    >>> from autodist_core.capture.example import example_traced
    >>> item = capture(example_traced(shape=(512, 512)))
    >>> item = replace(item, gradients=(replace(item.gradients[0], weighted=True),))
    >>> (product,) = gradient_products(StepIndex(item)).values()
    >>> product.node.op, product.left, product.right
    ('MatMul', 'x', 'gradient_tape/pow/mul_1')
    """

    node: Any
    left: str
    right: str


def gradient_products(step: StepIndex) -> dict[tuple[str, int], Product]:
    """Return the gradients of large kernels that are such products, by variable and occurrence.

    >>> from dataclasses import replace
    >>> from autodist_core.capture import capture
    >>> from autodist_core.capture.example import example_step, example_traced
    >>> for item in (capture(example_traced(shape=(512, 512))), example_step()):
    ...     weighted = replace(item, gradients=(replace(item.gradients[0], weighted=True),))
    ...     print(list(gradient_products(StepIndex(weighted))))
    [('kernel', 0)]
    []
    """
    return {
        gradient.key: product
        for gradient in step.item.gradients if _is_large(step.variables[gradient.variable].shape)
        if (product := gradient_product(step, gradient))
        if _has_a_row_per_example(step, product.left)
    }


def gradient_product(step: StepIndex, gradient: Gradient, of_shard: bool = False) -> Product | None:
    """Return a gradient as a product of two factors whose rows are those of a batch; None if it is none.

    With `of_shard`, that of the whole variable, of which a shard gets some entries.

    >>> from autodist_core.capture.example import example_step
    >>> item = example_step()
    >>> print(gradient_product(StepIndex(item), item.gradients[0]))
    None
    """
    # A gradient that the replicator weights later, or of which one replica's counts, is not the plain sum of products.
    # The barrier waits for the factors, not for the product, which must therefore be certain to succeed.
    if gradient.indices or gradient.alike or not gradient.weighted or step.item.handed_in:
        return None
    node = step.behind_identities(gradient.values, ("Identity", "Slice") if of_shard else ("Identity",))
    if node.op != "MatMul" or not node.attr["transpose_a"].b or node.attr["transpose_b"].b:
        return None
    return Product(node, *naming.data_inputs(node))


def weight_products(step: StepIndex) -> frozenset[str]:
    """Return the nodes of compute that multiply rows by a large trained variable.

    >>> from autodist_core.capture import capture
    >>> from autodist_core.capture.example import example_step, example_traced
    >>> large = capture(example_traced(shape=(512, 512)))
    >>> weight_products(StepIndex(large)), weight_products(StepIndex(example_step()))
    (frozenset({'matmul'}), frozenset())
    """
    weights = {name for trained in step.trained for name in (trained, step.variables[trained].part_of)}
    return frozenset(
        node.name for node in step.graph.node
        if node.op == "MatMul" and not step.is_update(node.name) and not naming.branch_of(node)
        and not node.attr["transpose_a"].b and not any(map(naming.is_control, node.input))
        and _is_large_weight(step, node.input[1], weights) and _has_a_row_per_example(step, node.input[0])
    )


def _is_large_weight(step: StepIndex, source: str, weights: Collection[str]) -> bool:
    node = step.behind_identities(source, ("Identity", "Cast"))
    if node.op != "ReadVariableOp" or node.name not in step.touches:
        return False
    variable = step.touches[node.name][0].variable
    return variable in weights and _is_large(step.variables[variable].shape)


def _is_large(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] * shape[1] >= LARGE * sum(shape)


def _has_a_row_per_example(step: StepIndex, source: str) -> bool:
    """Whether a matrix has one row for each example.

    A matrix of sequences has a row for each position, and copying its rows costs more.
    """
    node = step.nodes[naming.node_of(source)]
    if node.op != "Reshape":
        return True
    before, after = (partial_shapes(step)[naming.canonical(name)] for name in (node.input[0], source))
    return before.rank == 2 or (bool(before.rank) and before[1:].num_elements() == after[1])
