"""Compute large gradients one after the other, so that few of them are in memory at one time.

In: the products of factors (`synchronizer/factors.py`, `shard_factors.py`), the sums of gradients, and the writes of
the update. Out: control edges. Two kinds of gradients would otherwise all exist at one time:

- A machine has the factors of all gradients before the first write, so it could multiply all of them. Each product
  waits until the gradient of the one two before is used, so that one product runs beside one write::

      factors/replica0/0/float32/dense_2/kernel = MatMul(left, right, ^update/replica0/write of dense/kernel)

  Where a write needs several gradients, such as for their global norm, nothing waits.
- The owner of a shard keeps what it has got of a gradient until all machines have sent theirs. A machine that is ahead
  would fill the memory of the others. Where replicas gather weights, each gradient waits for the sum of the one before
  on the same machine, so no machine is further ahead. What the weights need goes on meanwhile::

      replica0/dense/MatMul_1 = MatMul(x, grad, ^reduced/owner/0/dense_1/kernel/part_0)
"""

from itertools import pairwise

from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.passes.synchronizer.reduction import name_of
from autodist_core.kernel.placement.devices import host_of
from autodist_core.kernel.placement.placement import Owner
from autodist_core.step import naming
from autodist_core.step.graph_check import in_order

_LEAST_BYTES = 1 << 22
"""The bytes of a gradient from which on its product waits."""
_PRODUCTS_AT_A_TIME = 2


class GradientsInTurn(Kernel):
    """Adds control edges to the nodes that compute large gradients.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce(), before="GradientsInTurn")
    >>> GradientsInTurn().apply(draft)
    >>> sorted(draft.products.travelling)  # one machine needs no factors
    []
    """

    needs = ("reduced", "steps")

    def apply(self, draft: Draft) -> None:
        """Let products wait on each owner of shards, and on each machine of which one replica owns all other variables;
        let gradients wait for their sums.
        """
        owners = draft.placement.owners
        alone = [found[0] for _, found in draft.placement.at_each_host(owners) if len(found) == 1]
        for owner in (*alone, *(each for each in owners if each.replica is None)) if draft.products.travelling else ():
            _take_turns(draft, owner)
        _keep_pace(draft)


def _keep_pace(draft: Draft) -> None:
    """Let a replica compute a gradient when its machine has its part of the sum of the one before."""
    sums: dict[tuple[str, int], dict[str, str]] = {}
    for gradient in draft.step.item.gradients:
        whole = draft.step.variables[gradient.variable].part_of
        if gradient.indices or whole not in draft.placement.partitioner.looked_up:
            continue
        producer = _producer(draft, gradient.values)
        for owner in draft.placement.owners:
            name = name_of(gradient, owner)
            # A small gradient travels with others, which may be later ones, and has a sum of another name.
            if name in draft.editor and draft.editor[name].op == "AddN" and producer:
                sums.setdefault((host_of(owner.device), gradient.occurrence), {})[producer] = name
    for (host, _), found in sums.items():
        by_readiness = sorted(found, key=draft.step.position.__getitem__)
        copies = [replica.copy_of for replica in draft.active_replicas if replica.host == host]
        for before, later in pairwise(by_readiness):
            for copy in (copy_of(later) for copy_of in copies):
                if copy in draft.editor:
                    draft.editor.control(copy, found[before])


def _producer(draft: Draft, tensor: str) -> str:
    """Return the captured node that computes the gradient of which this is a slice; empty if it may not run."""
    node = draft.step.behind_identities(tensor, ("Cast", "Identity", "Slice"))
    return "" if naming.branch_of(node) else node.name


def _take_turns(draft: Draft, owner: Owner) -> None:
    variables = draft.step.variables
    large = [
        gradient for gradient in draft.step.item.gradients
        if gradient.key in draft.products.travelling and (*gradient.key, owner.name) in draft.reduced
        and variables[gradient.variable].byte_size >= _LEAST_BYTES
    ]
    products = {naming.node_of(draft.reduced[*each.key, owner.name].values): each for each in large}
    writes = _writes(draft, owner, set(products))
    if writes is None:
        return
    at = draft.step.position
    by_readiness = sorted(
        products, key=lambda name: max(at[naming.node_of(factor)] for factor in draft.sources(products[name]))
    )
    for before, later in zip(by_readiness, by_readiness[_PRODUCTS_AT_A_TIME:], strict=False):
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
