"""The report on where a step's time goes: measured steps come in, and a `TimeReport` goes out.

The flow: `step_times.py` divides the time, and `time_text.py` makes the text.
"""

from collections import Counter
from dataclasses import replace
from html import escape

from autodist_core.auto import beside_measured
from autodist_core.kernel import bytes_of_example, factored
from autodist_core.plan import Shown
from autodist_core.plan.headline import bytes_of_links, bytes_of_values
from autodist_core.reports.step_times import TimeTable, WireTime, time_of_parts
from autodist_core.reports.time_text import text_of
from autodist_core.resource_spec import DeviceSpec, ResourceSpec
from autodist_core.runtime.timings import Timings
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex
from autodist_core.strategy.compiled import CompiledStrategy


class TimeReport(Shown[TimeTable]):
    """Where the time of a step goes. It is a string, and a notebook shows it in a font of equal widths.

    >>> parts = dict.fromkeys(("input", "Python", "compute", "update", "wire", "TensorFlow", "bringing home"), 0.0)
    >>> report = TimeReport(TimeTable(0.01, {"localhost": parts | {"compute": 0.01}}, 20, 64, 2))
    >>> report.splitlines()[0], report._repr_html_().startswith("<pre>a step")
    ('a step of 64 examples takes 10.0 ms on 2 replicas (measured in 20 steps)', True)
    """

    forms = text_of, lambda table: f"<pre>{escape(text_of(table))}</pre>"


def time_report(
    timings: Timings, examples: float, home: float, steps_of_call: int, source: str, item: GraphItem,
    strategy: CompiledStrategy, spec: ResourceSpec, notes: tuple[str, ...] = (),
) -> TimeReport:
    """The report on measured steps. `examples` is the number of examples in a step.

    `home` is the time of bringing the state home at the end of a call of `steps_of_call` steps. `source` names the kind
    of the data. Step, strategy and machines say what travels.

    >>> from autodist_core import StrategyCompiler
    >>> from autodist_core.strategy import PS
    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel import Part
    >>> from autodist_core.runtime.timings import Call, Operation, Run, Timings
    >>> item, spec = example_step(), ResourceSpec.local(cpus=2)
    >>> strategy, timings = StrategyCompiler(item, spec).compile(PS().build(item, spec)), Timings()
    >>> multiply = Operation("localhost", "CPU:0", "replica0/MatMul", "MatMul", Part.COMPUTE, 3.0, 4.0)
    >>> for begin, run in [(0.0, Run(3.0, 5.0)), (6.0, Run(3.0, 5.0, (multiply,)))]:
    ...     timings.calls.append(Call(begin, begin + 6.0, ((begin, begin + 2.5),), (run,)))
    >>> report = time_report(timings, 64, 1.0, 10, "arrays", item, strategy, spec)
    >>> round(report.table.step, 6), report.table.busiest
    (6.1, 'localhost')
    """
    step, parts = time_of_parts(timings.calls, home, steps_of_call)
    runs = [run for call in timings.calls for run in call.runs]
    plain = [run for run in runs if not run.operations]
    fed = sum(run.fed for run in runs) / len(runs)
    table = TimeTable(
        step, parts, len(plain), examples, len(strategy.replicas), source,
        _wire_time(item, strategy, spec, fed, examples), notes,
    )
    if any(note.startswith("auto chose") for note in strategy.notes):
        found = beside_measured(item, strategy, spec, round(examples), table.busiest, parts[table.busiest])
        table = replace(table, notes=(*notes, found))
    return TimeReport(table)


def _wire_time(
    item: GraphItem, strategy: CompiledStrategy, spec: ResourceSpec, fed: float, examples: float
) -> WireTime | None:
    """The time of the busiest link; None on one machine. The chief sends the other nodes' slices of the batch, too."""
    addresses = [DeviceSpec.parse(name).address for name in strategy.replicas]
    nodes = list(dict.fromkeys(addresses))
    if len(nodes) == 1:
        return None
    plans = {plan.variable.name: plan for plan in strategy.variables}
    step = StepIndex.of(item)
    factors = bytes_of_example(step, factored(step, plans, strategy.replicas, examples), plans)
    times = Counter(gradient.variable for gradient in item.gradients)
    chief, sparse = spec.chief.address, sum(plan.variable.is_sparse for plan in strategy.variables)
    links = bytes_of_links(strategy.variables, nodes, times, examples, factors)
    for node in nodes:  # slices go in one direction, in which all else takes as long as in the other one
        if node != chief:
            slices = fed * addresses.count(node) / len(addresses)
            links[node] += slices
            links[chief] += slices
    gathered, count = bytes_of_values(strategy.variables, nodes, times, gathered=True), sum(map(len, factors.values()))
    found = (
        WireTime(node, size, spec.network_bandwidth[node], sparse, count, gathered.get(node, 0.0))
        for node, size in links.items()
    )
    return max(found, key=lambda each: each.seconds)
