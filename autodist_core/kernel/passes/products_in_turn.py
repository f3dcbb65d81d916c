"""Multiply factors of large gradients one gradient after the other, so that few gradients are in memory at one time.

In: the products of factors (`synchronizer/factors.py`), and the writes of the update. Out: control edges. A machine
has the factors of all gradients before the first write, so it could multiply all of them. Here each product waits until
the gradient of the one two before is used::

    factors/replica0/0/float32/dense_2/kernel = MatMul(left, right, ^update/replica0/write of dense/kernel)

One product then runs beside one write. Where a write needs several gradients, such as for their global norm, nothing
waits.
"""

from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.placement.placement import Owner
from autodist_core.step import naming
from autodist_core.step.graph_check import in_order

_LEAST_BYTES = 1 << 22
"""The bytes of a gradient from which on its product waits."""
_AT_A_TIME = 2


class ProductsInTurn(Kernel):
    """Adds control edges from the writes that used a gradient to the product of a later gradient.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce(), before="ProductsInTurn")
    >>> ProductsInTurn().apply(draft)
    >>> sorted(draft.factored)  # one machine needs no factors
    []
    """

    needs = ("reduced", "steps")

    def apply(self, draft: Draft) -> None:
        """Let the products of each machine wait on which one replica owns all variables."""
        for _, owners in draft.placement.at_each_host(draft.placement.owners) if draft.factored else ():
            if len(owners) == 1:
                _take_turns(draft, owners[0])


def _take_turns(draft: Draft, owner: Owner) -> None:
    variables = draft.step.variables
    large = [
        gradient for gradient in draft.step.item.gradients
        if gradient.key in draft.factored and variables[gradient.variable].byte_size >= _LEAST_BYTES
    ]
    products = {naming.node_of(draft.reduced[*each.key, owner.name].values): each for each in large}
    writes = _writes(draft, owner, set(products))
    if writes is None:
        return
    at = draft.step.position
    by_readiness = sorted(
        products, key=lambda name: max(at[naming.node_of(factor)] for factor in draft.sources(products[name]))
    )
    for before, later in zip(by_readiness, by_readiness[_AT_A_TIME:], strict=False):
        draft.editor.control(later, *writes[before])


def _writes(draft: Draft, owner: Owner, products: set[str]) -> dict[str, list[str]] | None:
    """Return the writes that need each product, and only this one; None if one needs several, or may not run."""
    sources, step = draft.editor.sources(), draft.step
    writes = {owner.copy_of(name): name for name in step.writers if step.is_update(name)}
    needed: dict[str, frozenset[str]] = {}
    found: dict[str, list[str]] = {name: [] for name in products}
    for node in in_order(sources):
        needed[node] = frozenset(products & {node}).union(*map(needed.__getitem__, sources[node]))
        if node in writes and needed[node]:
            if len(needed[node]) > 1 or naming.branch_of(step.nodes[writes[node]]):
                return None
            found[next(iter(needed[node]))].append(node)
    return found
