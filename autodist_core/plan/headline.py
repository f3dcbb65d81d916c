"""The line that a training says once: how a batch is divided, how many parameters there are, and what travels.

In: the slices of the first batch, the plans of the variables as the step carries them out, and the number of buckets of
the step's graph. Out: text such as `256 per step = 4 x 64 on 2 machines; 8,400,000 parameters; 32.0 MiB per step in 9
buckets`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import prod

from autodist_core.errors import amount
from autodist_core.plan.table import bytes_per_step
from autodist_core.resource_spec import DeviceSpec
from autodist_core.step.graph_item import format_bytes
from autodist_core.strategy.compiled import VariablePlan
from autodist_core.strategy.synchronizers import PSPlan


def headline(
    slices: Sequence[int], replicas: Sequence[str], plans: Sequence[VariablePlan], memories: Sequence[int] = (),
    times: Mapping[str, int] | None = None, buckets: int = 0,
    factored: Mapping[str, Sequence[int]] | None = None,
) -> str:
    """Return the line. `slices` is the number of examples of each replica; empty if the step takes no batch.

    `memories` is, for each replica, the index of the replica on whose copies it computes; empty if each computes on its
    own. `times` says how often each gradient is applied. `factored` has the variables of whose gradients factors
    travel, with the bytes of an example. Over several machines, the bytes are those that the busiest one sends or
    receives. On one machine, they are those that travel between its devices.

    >>> from autodist_core.step.graph_item import Variable
    >>> from autodist_core.strategy.synchronizers import AllReducePlan
    >>> plans = [VariablePlan(Variable("kernel", (2000, 4200), "float32"), AllReducePlan())]
    >>> headline([64, 64, 64, 64], ["a:CPU:0", "a:CPU:1", "b:CPU:0", "b:CPU:1"], plans, (0, 0, 2, 2), buckets=9)
    '256 per step = 4 x 64 on 2 machines; 8,400,000 parameters; 32.0 MiB per step in 9 buckets'
    >>> headline([4, 3, 3], ["a:CPU:0", "a:CPU:1", "a:CPU:2"], plans, (0, 0, 0))
    '10 per step = 1 x 4 + 2 x 3 on 1 machine; 8,400,000 parameters; nothing travels between the replicas'
    >>> headline([64, 64], ["a:CPU:0", "b:CPU:0"], plans, factored={"kernel": [24_800]})
    '128 per step = 2 x 64 on 2 machines; 8,400,000 parameters; 1.5 MiB per step, with the factors of 1 gradient'
    """
    machines = list(dict.fromkeys(DeviceSpec.parse(name).address for name in replicas))
    on = f"on {amount(len(machines), 'machine')}"
    parameters = sum(prod(plan.variable.shape) for plan in plans)
    said = f"{_divided(slices, len(replicas))} {on}; {amount(f'{parameters:,}', 'parameter')}"
    if len(replicas) == 1:
        return said
    holders = [name for index, name in enumerate(replicas) if not memories or memories[index] == index]
    if len(holders) == 1 and len(machines) == 1 and set(memories) == {0}:
        return f"{said}; nothing travels between the replicas"
    if len(machines) > 1:
        size = max(bytes_of_links(plans, machines, times or {}, sum(slices), factored).values(), default=0.0)
    else:
        each = (bytes_per_step(plan, holders, max((times or {}).get(plan.variable.name, 1), 1)) for plan in plans)
        size = sum(found for found in each if found is not None)
    said += f"; {format_bytes(round(size))} per step"
    if buckets:
        said += f" in {amount(buckets, 'bucket')}"
    if factored:
        said += f", with the factors of {amount(sum(map(len, factored.values())), 'gradient')}"
    sparse = sum(plan.variable.is_sparse for plan in plans)
    return said + (f", and the rows of {amount(sparse, 'sparse variable')}" if sparse else "")


def _divided(slices: Sequence[int], replicas: int) -> str:
    """How the batch is divided: each size of a slice, with the number of replicas that have a slice of this size."""
    if not slices:
        return amount(replicas, "replica")
    sizes = Counter([*slices, *[0] * (replicas - len(slices))])
    return f"{sum(slices)} per step = {' + '.join(f'{count} x {size}' for size, count in sizes.items())}"


def bytes_of_links(
    plans: Sequence[VariablePlan], nodes: Sequence[str], times: Mapping[str, int], examples: float = 0,
    factored: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, float]:
    """The bytes that each node sends in a step. It gets as many.

    `nodes` are those with replicas. `times` says how often each gradient is applied. A ring over N nodes moves 2(N-1)/N
    of a gradient's bytes over each link, in both directions. The server of a variable gets the gradient from each other
    node once, and sends the value to each once. The rows of sparse gradients are not known before a batch, and do not
    count. `factored` has the variables whose gradients travel as factors, and for each of these gradients the bytes of
    one of the `examples`. Each node gets (N-1)/N of all their bytes, and sends as many.

    >>> from autodist_core.step.graph_item import Variable
    >>> from autodist_core.strategy.synchronizers import AllReducePlan
    >>> kernel = Variable("kernel", (250,), "float32")
    >>> bytes_of_links([VariablePlan(kernel, AllReducePlan())], ["10.0.0.1", "10.0.0.2"], {})["10.0.0.2"]
    1000.0
    >>> served = VariablePlan(kernel, PSPlan(("10.0.0.1:CPU:0",)))
    >>> bytes_of_links([served], ["10.0.0.1", "10.0.0.2", "10.0.0.3"], {})["10.0.0.1"]
    2000.0
    >>> dense = VariablePlan(Variable("kernel", (100, 50), "float32"), AllReducePlan())
    >>> bytes_of_links([dense], ["10.0.0.1", "10.0.0.2"], {}, 16, {"kernel": [600]})["10.0.0.1"]
    4800.0
    """
    found = dict.fromkeys(nodes, 0.0)
    for plan in plans:
        if plan.variable.is_sparse:
            continue
        of_factors = (factored or {}).get(plan.variable.name, ())
        count = max(times.get(plan.variable.name, 1), 1)
        of_each = examples * sum(of_factors) * (len(nodes) - 1) / len(nodes)
        for each in plan.pieces:
            size = each.wire.bytes
            if isinstance(each.synchronizer, PSPlan):
                server = DeviceSpec.parse(each.synchronizer.destinations[0]).address
                for node in nodes:
                    found[node] += (count - len(of_factors)) * size if node != server else 0
            else:
                of_each += 2 * (count - len(of_factors)) * size * (len(nodes) - 1) / len(nodes)
        for node in nodes:
            found[node] += of_each
    values = Counter(bytes_of_values(plans, nodes, times))
    return {node: size + values[node] for node, size in found.items()}


def bytes_of_values(
    plans: Sequence[VariablePlan], nodes: Sequence[str], times: Mapping[str, int], gathered: bool = False
) -> dict[str, float]:
    """The bytes of values that each server sends in a step, or those of weights that are gathered.

    Gathered weights travel for the forward pass and for the backward pass, others once.

    >>> from autodist_core.step.graph_item import Variable
    >>> served = VariablePlan(Variable("kernel", (250,), "float32"), PSPlan(("10.0.0.1:CPU:0",)))
    >>> nodes = ["10.0.0.1", "10.0.0.2"]
    >>> bytes_of_values([served], nodes, {}), bytes_of_values([served], nodes, {}, gathered=True)
    ({'10.0.0.1': 1000.0}, {})
    """
    found = defaultdict[str, float](float)
    for plan in plans:
        for each in plan.pieces if not plan.variable.is_sparse and (plan.gathered or not gathered) else ():
            if isinstance(each.synchronizer, PSPlan):
                server = DeviceSpec.parse(each.synchronizer.destinations[0]).address
                often = (2 if plan.gathered else 1) * max(times.get(plan.variable.name, 1), 1)
                found[server] += often * each.wire.bytes * len([node for node in nodes if node != server])
    return dict(found)
