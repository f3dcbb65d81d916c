"""The bytes that each node sends and receives in a step, as a compiled strategy has it.

In: the plans of the variables, and the nodes of the replicas. Out: for each node, the bytes that leave it and the bytes
that reach it. The report on where a step's time goes divides them by the bandwidth of the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from autodist_core.resource_spec import DeviceSpec
from autodist_core.strategy.compiled import VariablePlan
from autodist_core.strategy.synchronizers import PSPlan
from autodist_core.strategy.wire import wire


@dataclass(frozen=True)
class LinkBytes:
    """The bytes that leave a node and those that reach it, in one step.

    >>> (LinkBytes(1.0, 2.0) + LinkBytes(0.0, 3.0)).most
    5.0
    """

    sent: float = 0.0
    received: float = 0.0

    def __add__(self, other: LinkBytes) -> LinkBytes:
        return LinkBytes(self.sent + other.sent, self.received + other.received)

    @property
    def most(self) -> float:
        """The bytes of the busier direction."""
        return max(self.sent, self.received)


def bytes_of_links(
    plans: Sequence[VariablePlan], nodes: Sequence[str], times: Mapping[str, int], examples: float = 0,
    factored: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, LinkBytes]:
    """The bytes of each node. `nodes` are those with replicas. `times` says how often each gradient is applied.

    A ring over N nodes moves 2(N-1)/N of a gradient's bytes over each link, in both directions. The server of a
    variable gets the gradient from each other node once, and sends the value to each once. The rows of sparse gradients
    are not known before a batch, and do not count. `factored` has the variables whose gradients travel as factors, and
    for each of these gradients the bytes of one of the `examples`. Each node gets (N-1)/N of all their bytes, and sends
    as many.

    >>> from autodist_core.step.graph_item import Variable
    >>> from autodist_core.strategy.synchronizers import AllReducePlan
    >>> kernel = Variable("kernel", (250,), "float32")
    >>> bytes_of_links([VariablePlan(kernel, AllReducePlan())], ["10.0.0.1", "10.0.0.2"], {})["10.0.0.2"]
    LinkBytes(sent=1000.0, received=1000.0)
    >>> served = VariablePlan(kernel, PSPlan(("10.0.0.1:CPU:0",)))
    >>> bytes_of_links([served], ["10.0.0.1", "10.0.0.2", "10.0.0.3"], {})["10.0.0.1"]
    LinkBytes(sent=2000.0, received=2000.0)
    >>> dense = VariablePlan(Variable("kernel", (100, 50), "float32"), AllReducePlan())
    >>> bytes_of_links([dense], ["10.0.0.1", "10.0.0.2"], {}, 16, {"kernel": [600]})["10.0.0.1"]
    LinkBytes(sent=4800.0, received=4800.0)
    """
    found = dict.fromkeys(nodes, LinkBytes())
    for plan in plans:
        if plan.variable.is_sparse:
            continue
        for shape, each in plan.pieces:
            of_factors = (factored or {}).get(plan.variable.name, ())
            count = max(times.get(plan.variable.name, 1), 1) - len(of_factors)
            if isinstance(each, PSPlan):
                size = float(count * prod(shape) * plan.variable.item_size)
                server = DeviceSpec.parse(each.destinations[0]).address
                others = [node for node in nodes if node != server]
                found[server] = found.get(server, LinkBytes()) + LinkBytes(size * len(others), size * len(others))
                for node in others:
                    found[node] += LinkBytes(size, size)
            else:
                gradients = 2 * count * wire(each, shape, plan.variable.dtype).bytes
                size = (gradients + examples * sum(of_factors)) * (len(nodes) - 1) / len(nodes)
                for node in nodes:
                    found[node] += LinkBytes(size, size)
    return found
