"""Make the graph of all units of each kind from the graph of those that stand for them.

In: a finished draft with two units of each kind, and the kinds. Out: the draft with all units. For 64 machines, of
which the machines 0, 1 and 2 were built::

    barrier/0       waits for barrier/0/replica0, and for a signal of each of the machines 1 to 63
    machine1/own0   a call of the function of level 0
    ...
    machine63/own1  a call of the function of level 1

TensorFlow puts the functions' operations in place of their calls before it runs the graph. So what runs is what the
kernels would have built for all replicas: a tensor leaves a call as soon as it is there, and gradients travel while the
backward pass goes on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import tensorflow as tf

from autodist_core.kernel.added_variables import AddedVariable
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.placement.devices import host_of
from autodist_core.kernel.units.folding import EARLIER, Level, apart, common_host, filled, levels
from autodist_core.kernel.units.kinds import Kind
from autodist_core.kernel.units.roles import Roles, UnlikeError
from autodist_core.kernel.units.unit import Unit
from autodist_core.step import naming
from autodist_core.step.grouping import by_key, grouped

_COUNTED = {"AddN", "ConcatV2", "Pack"}
"""The operations that take a value of each replica, and count them in their attribute `N`."""


class _Repeating:
    """The state of one repetition."""

    def __init__(self, draft: Draft, kinds: Sequence[Kind]) -> None:
        self.draft, self.kinds, self.editor = draft, kinds, draft.editor
        self.targets = {name: list(self.editor[name].input) for name in draft.steps}
        self.editor.remove(draft.steps)
        self.roles = Roles(self.editor, kinds)
        for kind in kinds:
            self.roles.require_same(kind)
        of, roles = self.roles.of, self.roles
        self.level_of = levels(
            roles, {name for name, number in of.items() if number and not roles.stays_outside(name)},
            map(naming.node_of, draft.outputs),
        )
        self.out = self.editor.empty()
        self.once = [node for node in self.editor if not of[node.name]]
        self.waits = self._waits()
        self.read = self._read()
        self.levels = {kind: self._levels(kind) for kind in kinds}

    def _waits(self) -> dict[str, dict[Kind, frozenset[str]]]:
        """Return for each node that is there once the nodes of the first unit of each kind for which it waits.

        The steps of the session wait for the targets of all of a unit.
        """
        awaiting = [(node.name, source) for node in self.once for source in node.input if naming.is_control(source)]
        awaiting += [("", source) for sources in self.targets.values() for source in sources]
        of_units = (each for each in awaiting if self.roles.source(each[1]))
        waits: dict[str, dict[Kind, frozenset[str]]] = {}
        for reader, sources in by_key(of_units).items():
            of_each = grouped(map(naming.node_of, sources), self.roles.of.__getitem__)
            for kind in self.kinds:
                numbers = [self.roles.number[unit] for unit in kind.built]
                awaited = [of_each.get(number, []) for number in numbers]
                own = [{self.roles.own(name, number): self.level_of.get(name) for name in names}
                       for number, names in zip(numbers, awaited, strict=True)]
                if any(each != own[0] for each in own):
                    raise UnlikeError(f"{reader or 'the step'} does not wait for the same of each unit.")
                if awaited[0]:
                    waits.setdefault(reader, {})[kind] = frozenset(awaited[0])
        return waits

    def _read(self) -> dict[int, list[str]]:
        """Return the tensors of each unit that nodes which are there once read, and those that are outputs."""
        read = [each for node in self.once for each in naming.data_inputs(node)]
        return grouped(filter(self.roles.source, [*read, *self.draft.outputs]), self.roles.source)

    def _levels(self, kind: Kind) -> dict[int, Level]:
        number = self.roles.number[kind.first]
        awaited = [each[kind] for each in self.waits.values() if kind in each]
        found = filled(self.roles, number, self.level_of, self.read.get(number, ()), awaited)
        return {level.number: level for level in found}

    def moved(self, source: str, kind: Kind, unit: Unit) -> str:
        """Return the tensor that a unit has in place of one of the built unit of its kind."""
        name = naming.node_of(source)
        level = self.level_of.get(name)
        if level is None:
            return kind.first.moved(source, unit) if self.roles.of[name] else source
        return naming.tensor(_call(unit, level), self.levels[kind][level].results[naming.canonical(source)])

    def of_all(self, kind: Kind, sources: Sequence[str]) -> list[str]:
        """Return tensors of each member of a kind in place of those of the kind's first unit."""
        return [self.moved(source, kind, unit) for unit in kind.members for source in sources]

    def signals(self, reader: str, units: Iterable[tuple[Kind, Unit]]) -> list[str]:
        """Return control inputs that wait for what a node that is there once awaits of units."""
        found = []
        for kind, unit in units:
            nodes_of = self.waits.get(reader, {}).get(kind, frozenset())
            for level, nodes in apart(self.roles, nodes_of, self.level_of):
                found.append(f"^{_signal(unit, level, self.levels[kind][level].signals[nodes])}")
        return found

    def add_once(self) -> None:
        """Add the nodes that are there once, with the values of all units."""
        everyone = [(kind, unit) for kind in self.kinds for unit in kind.members]
        self.out.merge(self.once)
        for node in self.once:
            if not any(self.roles.source(source) for source in node.input):
                continue
            tensors, more = self.roles.expanded(naming.data_inputs(node), self.of_all)
            controls = [s for s in node.input if naming.is_control(s) and not self.roles.source(s)]
            if more and node.op not in _COUNTED:
                raise UnlikeError(f"{node.name} ({node.op}) reads a value of each unit.")
            added = len(tensors) - sum(1 for _ in naming.data_inputs(node))
            attrs = {"N": node.attr["N"].i + added} if more else {}
            self.out.change(node.name, inputs=[*tensors, *controls, *self.signals(node.name, everyone)], **attrs)

    def add_unit(self, kind: Kind, unit: Unit) -> None:
        """Add what a unit has: its nodes outside, and its calls."""
        for name in self.roles.nodes[self.roles.number[kind.first]].values():
            if name not in self.level_of:
                self.roles.copy(self.out, name, unit)
        for level in self.levels[kind].values():
            call = _call(unit, level.number)
            arguments = [self._argument(source, level, kind, unit) for source in level.arguments]
            self.out.call(call, level.function, arguments, unit.device, _disable_call_shape_inference=True)
            for nodes, number in level.signals.items():
                source, host = naming.tensor(call, number), common_host(self.roles, nodes) or unit.host
                self.out.add("Identity", _signal(unit, level.number, number), [source], host, T=tf.int32)

    def _argument(self, source: str, reader: Level, kind: Kind, unit: Unit) -> str:
        if source.startswith(EARLIER):
            level = int(source.removeprefix(EARLIER))
            number = self.levels[kind][level].signals[reader.awaited[level]]
            return naming.tensor(_call(unit, level), number)
        if not naming.is_control(source):
            return self.moved(source, kind, unit) if self.roles.source(source) else source
        awaited = naming.node_of(source)
        zero, device = tf.make_tensor_proto(0, tf.int32), self.out[awaited].device
        return self.out.once("Const", f"signal/{awaited}", [source], device, dtype=tf.int32, value=zero)

    def add_steps(self) -> list[str]:
        """Add the nodes that the session runs: one for each machine."""
        waits: dict[str, list[str]] = {}
        names: dict[str, str] = {}
        for name, sources in self.targets.items():
            here = [source for source in sources if not self.roles.source(source)]
            if here:
                host = host_of(self.out[naming.node_of(here[0])].device)
                waits[host], names[host] = here, name
        for kind in self.kinds:
            for unit in kind.members:
                names.setdefault(unit.host, f"step/machine{unit.task}")
                waits.setdefault(unit.host, []).extend(self.signals("", [(kind, unit)]))
        return [self.out.add("NoOp", names[host], inputs, host) for host, inputs in waits.items() if inputs]


def repeat(draft: Draft, kinds: Sequence[Kind]) -> None:
    """Put all units of the kinds into a finished draft, which has the units that stand for them.

    Raise a `UnlikeError` if the units of a kind do not do the same.

    >>> from autodist_core import GraphItem
    >>> from autodist_core.kernel import Tasks, build, inference
    >>> with tf.Graph().as_default() as graph:
    ...     mean = tf.reduce_mean(tf.constant([1.0, 3.0], name="pair"), name="mean")
    >>> step = GraphItem((), graph_bytes=graph.as_graph_def().SerializeToString(), outputs=("mean:0",))
    >>> hosts = tuple(f"10.0.0.{index}" for index in range(1, 9))
    >>> placed = inference(tuple(f"{host}:CPU:0" for host in hosts), Tasks("run", hosts))
    >>> build(step, placed).changes[-1].kernel
    'Repeat'
    """
    state = _Repeating(draft, kinds)
    state.add_once()
    for kind in kinds:
        for unit in kind.members:
            state.add_unit(kind, unit)
    draft.outputs, _ = state.roles.expanded(draft.outputs, state.of_all)
    draft.steps = state.add_steps()
    draft.added = _added(draft.added, kinds)
    draft.editor = state.out


def _added(added: Sequence[AddedVariable], kinds: Sequence[Kind]) -> list[AddedVariable]:
    """Return the added variables of all units."""
    found = [each for each in added if not any(unit.has(each.name) for kind in kinds for unit in kind.built)]
    for kind in kinds:
        own = [variable for variable in added if kind.first.has(variable.name)]
        found += [
            replace(each, name=kind.first.moved(each.name, unit), device=kind.first.moved_device(each.device, unit))
            for unit in kind.members for each in own
        ]
    return found


def _call(unit: Unit, level: int) -> str:
    return f"{unit.label}/own{level}"


def _signal(unit: Unit, level: int, number: int) -> str:
    return f"{unit.label}/signal{level}_{number}"
