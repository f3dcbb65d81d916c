"""Find the gradients of which the factors travel between machines, in place of the gradients.

In: a captured step, the plans of its variables, the replicas, and the number of examples of a batch. Out: these
gradients, each as a `Product`. The strategy says for each variable up to how many examples its factors travel
(`strategy/factor_rows.py`). That is possible where the gradient is a product of two factors with a row for each
example, and where each machine has at most two replicas. An operation may have one thread only where there are more,
and would compute the rows of all machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from autodist_core.kernel.analysis.products import Product, gradient_products
from autodist_core.kernel.analysis.shapes import rows_of_each
from autodist_core.resource_spec import DeviceSpec
from autodist_core.step import naming
from autodist_core.step.index import StepIndex
from autodist_core.strategy.compiled import VariablePlan
from autodist_core.strategy.synchronizers import AllReducePlan

AT_ONCE_IN_AGENTS = 2
"""The most replicas of a machine that multiply at once in an agent. There an operation may have one thread only, which
would compute for all of them."""


def factored(
    step: StepIndex, plans: Mapping[str, VariablePlan], replicas: Sequence[str], examples: float
) -> dict[tuple[str, int], Product]:
    """Return the gradients whose factors travel in batches of so many examples, by variable and occurrence.

    `replicas` are the names of all replicas. A number of 0 stands for an unknown size.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce())
    >>> factored(draft.step, draft.placement.plans, ["10.0.0.1:CPU:0", "10.0.0.2:CPU:0"], 32)
    {}
    """
    found = with_limits(step, plans, replicas) if examples else {}
    return {key: product for key, (product, limit) in found.items() if examples <= limit}


def with_limits(
    step: StepIndex, plans: Mapping[str, VariablePlan], replicas: Sequence[str]
) -> dict[tuple[str, int], tuple[Product, int]]:
    """Return the gradients whose factors can travel, each with the most examples for which they do.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce())
    >>> with_limits(draft.step, draft.placement.plans, ["10.0.0.1:CPU:0", "10.0.0.2:CPU:0"])
    {}
    """
    limits = _limits(step, plans, replicas)
    products = gradient_products(step, frozenset(limits)) if limits else {}
    return {
        key: (product, limits[key[0]]) for key, product in products.items()
        if key[0] in limits and rows_of_each(step).get(naming.canonical(product.left)) == 1
    }


def _limits(step: StepIndex, plans: Mapping[str, VariablePlan], replicas: Sequence[str]) -> dict[str, int]:
    """The most examples for which the strategy lets the factors of a variable's gradient travel, if it ever does."""
    devices = [DeviceSpec.parse(name) for name in replicas]
    on_hosts = Counter(device.address for device in devices)
    if len(on_hosts) < 2 or max(on_hosts.values()) > AT_ONCE_IN_AGENTS or any(each.kind != "CPU" for each in devices):
        return {}
    return {
        name: plan.synchronizer.factor_rows for name in step.trained
        if (plan := plans.get(name)) and not plan.shards
        and isinstance(plan.synchronizer, AllReducePlan) and plan.synchronizer.factor_rows
    }
