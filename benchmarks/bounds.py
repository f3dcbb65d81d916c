"""The bounds of a step over hosts: the bytes that its strategy sends, and the time that a link takes for them.

In: the name of a workload and a builder. Out: the bytes on the busiest link in one step, and milliseconds. No machine
is needed. Of dense kernels, the gradient or its two factors travel, as the builder decides for the benchmarks' batch.
The rows of embedding tables are not known before a batch, and do not count.
"""

import re
from collections import Counter
from functools import cache
from typing import Any

from workloads import BATCH

_UNITS = {"mbit": 1e6, "gbit": 1e9}


def bits_per_second(rate: str) -> float:
    """Return a rate, written as for `tc`, in bits per second.

    >>> bits_per_second("1gbit")
    1000000000.0
    """
    number, unit = re.fullmatch(r"([0-9.]+)(mbit|gbit)", rate).groups()
    return float(number) * _UNITS[unit]


def wire_alone(size: float, rate: float) -> float:
    """Return the milliseconds that a link of some bits per second takes at least for some bytes.

    >>> wire_alone(125_000_000, 1e9)
    1000.0
    """
    return 8 * size / rate * 1e3


def link_bytes(workload: str, hosts: int, builder: Any) -> float:
    """Return the bytes that pass the busiest link in a step over so many hosts, each with one replica.

    >>> from autodist_core.strategy import AllReduce
    >>> link_bytes("one_layer", 2, AllReduce())
    680.0
    """
    from autodist_core import ResourceSpec
    from autodist_core.kernel import bytes_of_example, factored
    from autodist_core.plan.headline import bytes_of_links
    from autodist_core.step.index import StepIndex
    from autodist_core.strategy.compiler import StrategyCompiler

    names = [f"10.0.0.{number + 1}" for number in range(hosts)]
    spec = ResourceSpec({"nodes": [{"address": name, "chief": name == names[0]} for name in names]})
    item = _captured(workload)
    compiled = StrategyCompiler(item, spec).compile(builder.build(item, spec))
    plans = {plan.variable.name: plan for plan in compiled.variables}
    step = StepIndex.of(item)
    factors = bytes_of_example(step, factored(step, plans, compiled.replicas, BATCH), plans)
    times = Counter(gradient.variable for gradient in item.gradients)
    return max(bytes_of_links(compiled.variables, names, times, BATCH, factors).values())


@cache
def _captured(workload: str) -> Any:
    from growth import captured

    return captured(workload)
