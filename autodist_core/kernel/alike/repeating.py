"""Make the graph of all machines from the graph of those that stand for them.

In: a finished draft of machines that stand for others, and their kinds. Out: `Repeated`. For 64 machines, of which the
machines 0, 1 and 2 were built::

    barrier/0       waits for barrier/0/replica0, and for a signal of each of the machines 1 to 63
    machine1/own0   a call of the function of level 0
    ...
    machine63/own1  a call of the function of level 1

TensorFlow puts the functions' operations in place of their calls before it runs the graph. So what runs is what the
kernels would have built for all replicas: a tensor leaves a call as soon as it is there, and gradients travel while the
backward pass goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from autodist_core.kernel.added_variables import AddedVariable
from autodist_core.kernel.alike.folding import EARLIER, Body, apart, bodies, common_host, levels
from autodist_core.kernel.alike.kinds import Kind
from autodist_core.kernel.alike.machines import Machine
from autodist_core.kernel.alike.roles import NotAlikeError, Roles
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.placement.placement import Placement
from autodist_core.step import naming
from autodist_core.step.editor import Editor

_COUNTED = {"AddN", "ConcatV2", "Pack"}
"""The operations that take a value of each replica, and count them in their attribute `N`."""


@dataclass(frozen=True)
class Repeated:
    """The graph of all replicas.

    >>> Repeated(Editor(), ("joined/loss",), ("step/0",), ()).steps
    ('step/0',)
    """

    editor: Editor
    outputs: tuple[str, ...]
    steps: tuple[str, ...]
    added: tuple[AddedVariable, ...]


class _Repeating:
    """The state of one repetition."""

    def __init__(self, draft: Draft, kinds: Sequence[Kind], placement: Placement) -> None:
        self.draft, self.kinds, self.placement = draft, kinds, placement
        self.targets = {name: list(draft.editor[name].input) for name in draft.steps}
        draft.editor.remove(draft.steps)
        self.roles = Roles(draft, kinds)
        for kind in kinds:
            self.roles.require_alike(*(machine.task for machine in kind.built))
        of, roles = self.roles.of, self.roles
        self.level_of = levels(
            roles, {name for name, index in of.items() if index and not roles.stays_outside(name)},
            map(naming.node_of, draft.outputs),
        )
        self._require_equal_levels()
        self.out = draft.editor.empty()
        self.once = [node for node in draft.editor if not of[node.name]]
        self.waits = self._waits()
        self.bodies = {kind: self._bodies(kind) for kind in kinds}

    def _require_equal_levels(self) -> None:
        for common, name in self.roles.nodes[1].items():
            found = {self.level_of.get(nodes.get(common, "")) for nodes in self.roles.nodes.values()}
            if found != {self.level_of.get(name)}:
                raise NotAlikeError(f"{name} is not on one level on all machines.")

    def _waits(self) -> dict[str, dict[int, frozenset[str]]]:
        """Return for each node that is there once the nodes of each built machine for which it waits.

        The steps of the session wait for the targets of all of a machine.
        """
        found: dict[str, dict[int, set[str]]] = {}
        for node in self.once:
            for source in node.input:
                if naming.is_control(source) and (index := self.roles.source(source)):
                    found.setdefault(node.name, {}).setdefault(index, set()).add(naming.node_of(source))
        for sources in self.targets.values():
            for source in sources:
                if index := self.roles.source(source):
                    found.setdefault("", {}).setdefault(index, set()).add(naming.node_of(source))
        for reader, of_each in found.items():
            common = {frozenset(self.roles.own(name, index) for name in names) for index, names in of_each.items()}
            if len(common) > 1 or of_each.keys() != self.roles.nodes.keys():
                raise NotAlikeError(f"{reader or 'the step'} does not wait for the same of each machine.")
        return {reader: {i: frozenset(names) for i, names in each.items()} for reader, each in found.items()}

    def _bodies(self, kind: Kind) -> list[Body]:
        index = kind.first.task
        read = [source for node in self.once for source in naming.data_inputs(node)] + self.draft.outputs
        awaited = [each[index] for each in self.waits.values()]
        return bodies(
            self.roles, index, self.level_of, [source for source in read if self.roles.source(source) == index], awaited
        )

    def moved(self, source: str, kind: Kind, machine: Machine) -> str:
        """Return the tensor that a machine has in place of one of the built machine of its kind."""
        name = naming.node_of(source)
        level = self.level_of.get(name)
        if level is None:
            return kind.first.moved(source, machine) if self.roles.of[name] else source
        return naming.tensor(_call(machine, level), self._body(kind, level).position(source))

    def of_all(self, commons: Sequence[str]) -> list[str]:
        """Return tensors of each machine but the first, by their names on any machine."""
        found = []
        for kind in self.kinds:
            nodes = self.roles.nodes[kind.first.task]
            built = [naming.tensor(nodes[name], output) for name, output in map(naming.split, commons)]
            found += [self.moved(source, kind, machine) for machine in kind.members for source in built]
        return found

    def signals(self, reader: str, machines: Iterable[tuple[Kind, Machine]]) -> list[str]:
        """Return control inputs that wait for what a node that is there once awaits of machines."""
        if reader not in self.waits:
            return []
        found = []
        for kind, machine in machines:
            for level, nodes in apart(self.roles, self.waits[reader][kind.first.task], self.level_of):
                number = self._body(kind, level).signal(nodes)
                found.append(f"^{_signal(machine, level, number)}")
        return found

    def _body(self, kind: Kind, level: int) -> Body:
        return next(body for body in self.bodies[kind] if body.level == level)

    def add_once(self) -> None:
        """Add the nodes that are there once, with the values of all machines."""
        everyone = [(kind, machine) for kind in self.kinds for machine in kind.members]
        self.out.merge(self.once)
        for node in self.once:
            if not any(self.roles.source(source) for source in node.input):
                continue
            tensors, runs = self.roles.expanded(naming.data_inputs(node), self.of_all)
            controls = [s for s in node.input if naming.is_control(s) and not self.roles.source(s)]
            if runs and (runs > 1 or node.op not in _COUNTED):
                raise NotAlikeError(f"{node.name} ({node.op}) reads a value of each machine.")
            more = len(tensors) - sum(1 for _ in naming.data_inputs(node))
            attrs = {"N": node.attr["N"].i + more} if runs else {}
            self.out.change(node.name, inputs=[*tensors, *controls, *self.signals(node.name, everyone)], **attrs)

    def add_machine(self, kind: Kind, machine: Machine) -> None:
        """Add what a machine has: its nodes outside, and its calls."""
        first = self.placement.replicas[machine.first]
        for name in self.roles.nodes[kind.first.task].values():
            if name not in self.level_of:
                self.roles.copy(self.out, name, machine)
        for body in self.bodies[kind]:
            assert body.function is not None
            call = _call(machine, body.level)
            arguments = [self._argument(source, body, kind, machine) for source in body.arguments]
            self.out.add(
                "StatefulPartitionedCall", call, arguments, first.device, Tin=body.types, Tout=body.returned,
                f=_named(body), config="", config_proto="", executor_type="", _disable_call_shape_inference=True,
            )
            for number, nodes in enumerate(body.signals, len(body.results)):
                source, host = naming.tensor(call, number), common_host(self.roles, nodes) or first.host
                self.out.add("Identity", _signal(machine, body.level, number), [source], host, T=tf.int32)

    def _argument(self, source: str, body: Body, kind: Kind, machine: Machine) -> str:
        if source.startswith(EARLIER):
            level = int(source.removeprefix(EARLIER))
            number = self._body(kind, level).signal(body.awaited[level])
            return naming.tensor(_call(machine, level), number)
        if not naming.is_control(source):
            return self.moved(source, kind, machine)
        awaited = naming.node_of(source)
        name = f"signal/{awaited}"
        if name not in self.out:
            zero = tf.make_tensor_proto(0, tf.int32)
            self.out.add("Const", name, [source], self.out[awaited].device, dtype=tf.int32, value=zero)
        return name

    def add_steps(self) -> list[str]:
        """Add the nodes that the session runs: one for each machine."""
        found = []
        for name, sources in self.targets.items():
            here = [source for source in sources if not self.roles.source(source)]
            if here:
                found.append(self.out.add("NoOp", name, here, self.out[naming.node_of(here[0])].device))
        for kind in self.kinds if "" in self.waits else ():
            for machine in kind.members:
                host = self.placement.replicas[machine.first].host
                inputs = self.signals("", [(kind, machine)])
                found.append(self.out.add("NoOp", f"step/machine{machine.task}", inputs, host))
        return found


def repeated(draft: Draft, kinds: Sequence[Kind], placement: Placement) -> Repeated:
    """Return the graph of all machines of a placement. `draft` has the machines that stand for them.

    Raise a `NotAlikeError` if the machines of a kind do not do the same.

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
    state = _Repeating(draft, kinds, placement)
    state.add_once()
    for kind in kinds:
        for body in state.bodies[kind]:
            assert body.function is not None
            state.out.add_function(body.function)
        for machine in kind.members:
            state.add_machine(kind, machine)
    outputs, _ = state.roles.expanded(draft.outputs, state.of_all)
    steps = state.add_steps()
    for name, function in draft.editor.functions.items():
        if name not in state.out.functions:
            state.out.add_function(function)
    return Repeated(state.out, tuple(outputs), tuple(steps), tuple(_added(draft.added, kinds)))


def _added(added: Sequence[AddedVariable], kinds: Sequence[Kind]) -> list[AddedVariable]:
    """Return the added variables of all machines."""
    found = [variable for variable in added if "/task:0/" in variable.device]
    for kind in kinds:
        for variable in added:
            if f"/task:{kind.first.task}/" in variable.device:
                found += [_on(variable, kind.first, machine) for machine in kind.members]
    return found


def _on(variable: AddedVariable, built: Machine, machine: Machine) -> AddedVariable:
    if not built.has(variable.name):
        raise NotAlikeError(f"the added variable {variable.name} is of no replica.")
    return replace(
        variable, name=built.moved(variable.name, machine), device=built.device(variable.device, machine)
    )


def _named(body: Body) -> Any:
    assert body.function is not None
    return attr_value_pb2.AttrValue(func=attr_value_pb2.NameAttrList(name=body.function.signature.name))


def _call(machine: Machine, level: int) -> str:
    return f"machine{machine.task}/own{level}"


def _signal(machine: Machine, level: int, number: int) -> str:
    return f"machine{machine.task}/signal{level}_{number}"
