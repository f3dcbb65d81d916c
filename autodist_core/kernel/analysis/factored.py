"""Find the gradients of which the factors travel between machines, in place of the gradients.

In: a captured step, the plans of its variables, the replicas, and the number of examples of a batch. Out: these
gradients, each as a `Product`; for the others, the reason. The strategy says for each variable up to how many examples
its factors travel (`strategy/factor_rows.py`). That is possible where the gradient is a product of two factors with a
row for each example, and where each machine has at most two replicas. An operation may have one thread only where there
are more, and would compute the rows of all machines.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autodist_core.kernel.analysis.products import Product, gradient_product
from autodist_core.kernel.analysis.shapes import rows_of_each
from autodist_core.resource_spec import DeviceSpec
from autodist_core.step import naming
from autodist_core.step.graph_item import Gradient
from autodist_core.step.grouping import by_key
from autodist_core.step.index import StepIndex
from autodist_core.strategy.compiled import VariablePlan
from autodist_core.strategy.factor_rows import AT_ONCE_IN_AGENTS, TYPES
from autodist_core.strategy.synchronizers import AllReducePlan


@dataclass(frozen=True)
class Factors:
    """A gradient whose factors can travel, and the most examples of a batch for which they do.

    >>> from autodist_core.capture.example import example_step
    >>> (node, *_) = StepIndex(example_step()).nodes.values()
    >>> Factors(Product(node, "inputs", "gradients_of_outputs"), 284).limit
    284
    """

    product: Product
    limit: int


def factors(
    step: StepIndex, plans: Mapping[str, VariablePlan], replicas: Sequence[str]
) -> dict[tuple[str, int], Factors | str]:
    """Return the gradients of which the strategy lets factors travel, by variable and occurrence.

    Where the factors of such a gradient never travel, the reason stands in their place. `replicas` are the names of all
    replicas.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce())
    >>> factors(draft.step, draft.placement.plans, ["10.0.0.1:CPU:0", "10.0.0.2:CPU:0"])
    {}
    """
    hindrance = _hindrance(replicas)
    found: dict[tuple[str, int], Factors | str] = {}
    for gradient in step.item.gradients:
        plan = plans.get(gradient.variable) or plans.get(step.variables[gradient.variable].part_of)
        if plan and plan.synchronizer.factor_rows:
            of_shards = isinstance(plan.synchronizer, AllReducePlan) and plan.shards
            reason = hindrance or ("gradients of shards travel" if of_shards else "")
            found[gradient.key] = reason or _factors(step, gradient, plan.synchronizer.factor_rows)
    return found


def factored(
    step: StepIndex, plans: Mapping[str, VariablePlan], replicas: Sequence[str], examples: float
) -> dict[tuple[str, int], Product]:
    """Return the gradients whose factors travel in batches of so many examples. 0 stands for an unknown number.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce())
    >>> factored(draft.step, draft.placement.plans, ["10.0.0.1:CPU:0", "10.0.0.2:CPU:0"], 32)
    {}
    """
    found = factors(step, plans, replicas) if examples else {}
    return {key: each.product for key, each in found.items() if isinstance(each, Factors) and examples <= each.limit}


def bytes_of_example(
    step: StepIndex, products: Mapping[tuple[str, int], Product], plans: Mapping[str, VariablePlan]
) -> dict[str, tuple[int, ...]]:
    """Return the bytes of the factors of one example, by variable, for each of the variable's gradients.

    A factor of several products travels once. It counts for the first of them. A machine that owns shards gets its
    columns of the factor that is cut, as the variable is, and all of the other factor.

    >>> from autodist_core.capture.example import example_step
    >>> bytes_of_example(StepIndex(example_step()), {}, {})
    {}
    """
    seen: set[tuple[int, str, int]] = set()
    found: dict[tuple[str, int], int] = {}
    for (name, occurrence), product in products.items():
        variable = step.variables[step.variables[name].part_of or name]
        plan, owners = plans.get(variable.name), 1
        if (variable.name, occurrence) in found:
            continue
        if plan and plan.shards:
            owners = len({DeviceSpec.parse(place).address for place in plan.bytes_on_servers})
        size = 0
        for axis, (factor, width) in enumerate(zip((product.left, product.right), variable.shape, strict=True)):
            parts = owners if plan and axis == plan.axis else 1
            travelling = occurrence, naming.canonical(factor), parts
            size += 0 if travelling in seen else width * variable.item_size // parts
            seen.add(travelling)
        found[variable.name, occurrence] = size
    return {name: tuple(sizes) for name, sizes in by_key((name, size) for (name, _), size in found.items()).items()}


def _hindrance(replicas: Sequence[str]) -> str:
    """Why no factors travel between these replicas; empty if they may."""
    devices = [DeviceSpec.parse(name) for name in replicas]
    on_hosts = Counter(device.address for device in devices)
    if len(on_hosts) < 2:
        return "all replicas are on one machine"
    if any(device.kind != "CPU" for device in devices):
        return "factors travel between CPUs only"
    address, most = on_hosts.most_common(1)[0]
    if most > AT_ONCE_IN_AGENTS:
        return f"{address} has {most} replicas, and factors travel if no machine has more than {AT_ONCE_IN_AGENTS}"
    return ""


def _factors(step: StepIndex, gradient: Gradient, limit: int) -> Factors | str:
    variable = step.variables[gradient.variable]
    product, known = gradient_product(step, gradient, bool(variable.part_of)), variable.dtype in TYPES
    if product and known and rows_of_each(step).get(naming.canonical(product.left)) == 1:
        return Factors(product, limit)
    return "the gradient is not one product of two matrices with a row for each example, in a type that factors have"
