"""The time of a step, predicted from what its variables add to it.

In: charges, and the machines. Out: a `Prediction`, with the parts of the step on each machine::

    |-- lookups --|---------- compute ----------|--- wait ---|-- update --|-- back --|
                            gradients leave, interval by interval

A step waits until every gradient is everywhere, as the graph's barriers do. So the parts before the update end at one
moment on all machines, and so does the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autodist_core.auto.charges import INTERVALS, Charge
from autodist_core.auto.profiles import BUS, GPU_LATENCY, GPU_UPDATE, HANDLING, PEER, RING, UPDATE, Machine

COMPUTE, WIRE, UPDATING, BACK = PARTS = ("compute", "waiting for the wire", "update", "bringing values back")
"""The parts of a step, in their order. The rows that a step looks up are part of waiting."""
_PULL, _FETCH, _ON_CPU, _ON_GPU = range(4)
"""The places of what is counted of a server."""
_NOTHING = 0.5
"""Fewer bytes are none: charges that were added and taken away again may leave a rest."""


@dataclass(frozen=True)
class Prediction:
    """What is predicted of a step. The parts of each machine add up to the step.

    >>> found = Prediction(0.5, {"a": {"compute": 0.5}, "b": {"compute": 0.1}}, {"a": 0.1, "b": 0.3})
    >>> found.busiest_link, found.part("compute")
    ('b', 0.5)
    """

    step: float
    """In seconds."""
    parts: Mapping[str, Mapping[str, float]]
    """For each machine, the seconds of each part."""
    links: Mapping[str, float]
    """For each machine, the seconds that its link needs for the bytes of a step."""

    @property
    def busiest_link(self) -> str:
        """The machine whose link needs longest."""
        return max(self.links, key=self.links.__getitem__)

    def part(self, name: str) -> float:
        """The seconds of a part on the machine that waits least: the others wait for it."""
        return min(self.parts.values(), key=lambda parts: parts.get(WIRE, 0.0)).get(name, 0.0)


class Totals:
    """Charges, added up. A charge can be added and taken away again: the search changes one variable at a time.

    >>> totals = Totals([Machine("10.0.0.1", 1), Machine("10.0.0.2", 1)], {"10.0.0.1": 0.1, "10.0.0.2": 0.1})
    >>> totals.add(Charge("kernel", INTERVALS - 1, ring=119_625_000.0))
    >>> {part: round(seconds, 2) for part, seconds in totals.predicted().parts["10.0.0.1"].items()}
    {'compute': 0.1, 'waiting for the wire': 1.0, 'update': 0.0, 'bringing values back': 0.0}
    >>> totals.add(Charge("kernel", INTERVALS - 1, ring=119_625_000.0), -1)
    >>> round(totals.predicted().step, 5)
    0.10127
    """

    def __init__(self, machines: Sequence[Machine], compute: Mapping[str, float]) -> None:
        """`compute` are the seconds of the forward and backward pass on each machine."""
        self._machines, self._compute = machines, compute
        self._kinds = [(replace(each, address=""), compute.get(each.address)) for each in machines]
        self._replicas = max((each.replicas for each in machines), default=1)
        # What each machine has, and what a server has besides. A server does not send to itself.
        self._ring, self._pushed, self._bus = ([0.0] * INTERVALS for _ in range(3))
        self._own: dict[str, list[float]] = {}
        self._work = self._update = self._by_sends = 0.0
        self._served: dict[str, list[float]] = {}
        self._pulled = self._fetched = 0.0

    def add(self, charge: Charge, sign: int = 1) -> None:
        """Add a charge, or take it away again with `sign=-1`."""
        at = charge.interval
        self._ring[at] += sign * charge.ring
        self._bus[at] += sign * charge.bus
        self._update += sign * charge.update
        self._work += sign * charge.work
        self._by_sends += sign * charge.by_sends
        for each in charge.servers:
            if each.machine not in self._own:
                self._own[each.machine], self._served[each.machine] = [0.0] * INTERVALS, [0.0] * 4
            self._own[each.machine][at] += sign * each.push
            self._pushed[at] += sign * each.push
            self._pulled += sign * each.pull
            self._fetched += sign * each.fetch
            served = self._served[each.machine]
            served[_PULL] += sign * each.pull
            served[_FETCH] += sign * each.fetch
            served[_ON_GPU if each.on_gpu else _ON_CPU] += sign * each.update

    def predicted(self) -> Prediction:
        """The prediction for all charges that were added."""
        slowest = min((each.bandwidth for each in self._machines), default=1.0)
        found: dict[str, _OfMachine] = {}
        alike: dict[object, _OfMachine] = {}
        for machine, kind in zip(self._machines, self._kinds, strict=True):
            # Machines that serve nothing, and are alike, take as long.
            serves = machine.address in self._own
            if serves or kind not in alike:
                alike[machine.address if serves else kind] = self._of(machine, slowest)
            found[machine.address] = alike[machine.address if serves else kind]
        ended, update, back = (max((getattr(each, name) for each in found.values()), default=0.0) for name in _UNTIL)
        parts = {
            name: {COMPUTE: each.compute, WIRE: ended - each.compute, UPDATING: update, BACK: back}
            for name, each in found.items()
        }  # fmt: skip
        return Prediction(ended + update + back, parts, {name: each.link for name, each in found.items()})

    def _of(self, machine: Machine, slowest: float) -> _OfMachine:
        compute = self._compute.get(machine.address, 0.0)
        served = self._served.get(machine.address) or [0.0] * 4
        busy = compute + self._work / (machine.operations * machine.replicas)
        on_cpu = UPDATE / machine.processors if machine.on_gpus else machine.update
        update = on_cpu * served[_ON_CPU] + GPU_UPDATE * served[_ON_GPU] / self._replicas
        update += machine.update * self._update
        if len(self._machines) == 1:
            intervals = [compute * (at + 1) / INTERVALS for at in range(INTERVALS)]
            return _OfMachine(busy, max(busy, _last(intervals, self._bus, BUS)), update, 0.0, 0.0)
        others = len(self._machines) - 1
        fetched = max(others * served[_FETCH], self._fetched - served[_FETCH])
        fetch = fetched / machine.bandwidth + 2 * machine.latency if fetched > _NOTHING else 0.0
        intervals = [fetch + compute * (at + 1) / INTERVALS for at in range(INTERVALS)]
        # A ring is as fast as its slowest link.
        ring = [size * machine.bandwidth / slowest for size in self._ring]
        own = self._own.get(machine.address) or [0.0] * INTERVALS
        sent = [size + more - less for size, more, less in zip(ring, self._pushed, own, strict=True)]
        got = [size + others * mine for size, mine in zip(ring, own, strict=True)]
        in_ring = sum(self._ring) - self._by_sends
        # NCCL moves what is in a ring of GPUs without the processors.
        handled_in_ring = 0.0 if machine.on_gpus else 2 * RING * in_ring
        moved = sum(sent) + sum(got) - 2 * sum(ring) + 2 * self._by_sends + handled_in_ring + fetched
        wire = max(_last(intervals, sent, machine.bandwidth), _last(intervals, got, machine.bandwidth))
        handled = fetch + busy + HANDLING / machine.processors * moved
        # The last bytes of a ring go from machine to machine twice; other ones go to one machine, and sums come back.
        hops = 2 * others if in_ring > _NOTHING else 2 if self._by_sends > _NOTHING else 1 if moved > _NOTHING else 0
        signal = hops * (GPU_LATENCY if machine.on_gpus and in_ring > _NOTHING else machine.latency)
        pulled = max(others * served[_PULL], self._pulled - served[_PULL])
        back = max(pulled / machine.bandwidth, HANDLING / machine.processors * pulled)
        link = (max(sum(sent), sum(got)) + fetched + pulled) / machine.bandwidth
        # The chief calls each machine, which answers. Servers, and those who add up, have messages with all others.
        serves, calls = machine.address in self._own, others if machine.address == self._machines[0].address else 1
        summed = 0 if machine.on_gpus else 2 * others if in_ring > _NOTHING else calls * (self._by_sends > _NOTHING)
        talking = PEER / machine.processors * (calls + max(others * serves + len(self._own) - serves, summed))
        ended = max(wire, _last(intervals, self._bus, BUS), handled) + talking + signal + 2 * machine.latency
        return _OfMachine(busy, ended, update, back + machine.latency if pulled > _NOTHING else 0.0, link)


@dataclass(frozen=True)
class _OfMachine:
    """The seconds of one machine, before it waits for the others."""

    compute: float
    ended: float
    """When it has computed, and has all gradients."""
    update: float
    back: float
    link: float


_UNTIL = ("ended", "update", "back")


def _last(ready: Sequence[float], sizes: Sequence[float], rate: float) -> float:
    """When the last of some bytes are through a link, which become ready one after the other."""
    end = 0.0
    for moment, size in zip(ready, sizes, strict=True):
        if size > _NOTHING:
            end = max(end, moment) + size / rate
    return end


def predict(charges: Iterable[Charge], machines: Sequence[Machine], compute: Mapping[str, float]) -> Prediction:
    """The prediction for a step with these charges.

    >>> predict([], [Machine("10.0.0.1", 1)], {"10.0.0.1": 0.1}).step
    0.1
    """
    totals = Totals(machines, compute)
    for charge in charges:
        totals.add(charge)
    return totals.predicted()
