"""Improve a strategy variable by variable.

In: the best of the tried strategies. Out: a `Candidate` that is predicted to be no slower. For one variable after the
other, the largest first, it is tried whether the step becomes shorter if that variable is all-reduced, split over the
servers, or lives on one of them. A variable keeps what is fastest while all others stay as they are.

Where the rate of the machines was not measured, a change must not make the step of much faster machines longer either:
arithmetic that is only thought to be slow would hide what travels.
"""

from collections.abc import Iterator

from autodist_core.auto.charges import Charge
from autodist_core.auto.choosing import Candidate, Trial
from autodist_core.auto.prediction import Totals
from autodist_core.errors import amount
from autodist_core.strategy import AllReduce, PartitionedPS, Strategy
from autodist_core.strategy.options import PSOptions, replica_devices
from autodist_core.strategy.synchronizers import Node

_EVALUATIONS = 12_000
"""The most changes, each for one machine: some 200 variables on 8 machines. A limit of time would not repeat."""
_FASTER = 10.0
"""How many times as fast machines may be as they are taken to be."""
_SERVERS = 8
"""The most machines on which a variable is tried: those with the fastest links."""
_GAIN = 1e-3
"""The share of a step by which a change must make it shorter. Smaller gains are below what a prediction can tell."""


def _on(trial: Trial, *devices: str) -> Strategy:
    """The strategy that puts every variable on one device, or a shard of it on each of several."""
    options, nodes = PSOptions(), []
    for variable in trial.item.trainable_var_op_to_var.values():
        is_short = not variable.shape or variable.shape[0] < len(devices)
        nodes.append(Node.of(variable, [options.ps(place) for place in devices[: 1 if is_short else None]]))
    return Strategy.of(replica_devices(trial.spec), nodes)


def improved(trial: Trial, found: Candidate) -> Candidate:
    """The candidate with other decisions for some variables; the same candidate if none makes a step shorter.

    >>> from autodist_core import GraphItem, ResourceSpec, Variable
    >>> spec = ResourceSpec({"nodes": [
    ...     {"address": "10.0.0.1", "chief": True, "network_bandwidth": 10}, {"address": "10.0.0.2"},
    ...     {"address": "10.0.0.3"},
    ... ]})
    >>> kernels = (Variable("a", (2000, 1000), "float32"), Variable("b", (1000, 1000), "float32"))
    >>> trial = Trial.of(GraphItem(kernels), spec, 1024)
    >>> (before, *_) = trial.compared([PartitionedPS()])
    >>> after = improved(trial, before)
    >>> after.name, after.prediction.step < before.prediction.step
    ('PartitionedPS with 2 variables changed', True)
    """
    cluster = trial.charging.cluster
    if len(cluster.machines) < 2:
        return found
    views = [_View(trial, found), _View(trial.on(cluster.faster(_FASTER)), found)]
    now = {each.name: each for each in found.charges}
    left, nodes = _EVALUATIONS // len(cluster.machines), dict[str, Node]()
    sizes = {name: each.byte_size for name, each in trial.item.trainable_var_op_to_var.items()}
    others = list(_others(trial))
    for name in sorted(now, key=lambda name: -sizes[name]):
        for charges, settings in others:
            if left == 0 or charges[name] == now[name]:
                continue
            left -= 1
            gains = [view.gain(now[name], charges[name]) for view in views]
            if gains[0] > _GAIN and min(gains) >= 0:
                for view in views:
                    view.change(now[name], charges[name])
                now[name], nodes[name] = charges[name], settings[name]
    if not nodes:
        return found
    kept = found.strategy
    strategy = Strategy.of(kept.replicas, [nodes.get(node.var_name, node) for node in kept.nodes], kept.notes)
    made = trial.candidate(f"{found.name} with {amount(len(nodes), 'variable')} changed", strategy)
    better = made.prediction.step < found.prediction.step and (trial.fits(made) or not trial.fits(found))
    return made if better else found


class _View:
    """The step of a candidate on some machines, while single variables are changed."""

    def __init__(self, trial: Trial, found: Candidate) -> None:
        self._totals = Totals(trial.charging.cluster.machines, trial.compute)
        for charge in found.charges:
            self._totals.add(charge)
        self._step = self._totals.predicted().step

    def gain(self, old: Charge, new: Charge) -> float:
        """By which share of its time a step becomes shorter with another charge of one variable."""
        self._replace(old, new)
        gain = 1 - self._totals.predicted().step / self._step
        self._replace(new, old)
        return gain

    def change(self, old: Charge, new: Charge) -> None:
        """Take the other charge."""
        self._replace(old, new)
        self._step = self._totals.predicted().step

    def _replace(self, old: Charge, new: Charge) -> None:
        self._totals.add(old, -1)
        self._totals.add(new)


def _others(trial: Trial) -> Iterator[tuple[dict[str, Charge], dict[str, Node]]]:
    """What can be decided of each variable: its charge, and its settings in a strategy, by its name."""
    rates = trial.spec.network_bandwidth
    by_rate = sorted(trial.spec.node_cpu_devices.items(), key=lambda each: -rates[each[0]])
    servers = [devices[0][0] for _, devices in by_rate if devices]
    built = (each.build(trial.item, trial.spec) for each in (AllReduce(), AllReduce(factor_rows=0), PartitionedPS()))
    for made in (*built, _on(trial, *servers), *(_on(trial, name) for name in servers[:_SERVERS])):
        charges = trial.candidate("", made).charges
        yield {each.name: each for each in charges}, {node.var_name: node for node in made.nodes}
