"""Make functions of what a built unit does, which is a machine or one of its replicas.

In: the nodes of a unit, in levels. Out: a `Level` for each level: the function, its arguments and its results. For a
machine that waits for all others before it writes::

    level 0    from the inputs to the sum of the gradients, and the signal that all of this has run
    level 1    the writes, after the signal of all machines

A node is on a higher level than the nodes of the unit on which it depends through other nodes. A function cannot
have control inputs and control outputs of its single nodes. So a **signal**, a constant that waits for nodes, is an
argument or a result in place of a control edge.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import tensorflow as tf

from autodist_core.kernel.analysis.compilable import pieces
from autodist_core.kernel.units.roles import Roles, UnlikeError
from autodist_core.step import naming
from autodist_core.step.enclosing import Body
from autodist_core.step.grouping import grouped

EARLIER = "^level "
"""How an argument begins that is the signal of an earlier level of the same unit. No node has such a name."""


@dataclass(frozen=True)
class Level:
    """What a unit does on one level.

    `arguments` are tensors of the graph, signals of its nodes (``^name``), or signals of earlier levels.

    >>> level = Level(1, ("replica1/write",), results={"replica1/sum": 0}, signals={frozenset({"a"}): 1})
    >>> level.results["replica1/sum"], level.signals[frozenset({"a"})]
    (0, 1)
    """

    number: int
    names: tuple[str, ...]
    results: dict[str, int]
    """For tensors of the level's nodes, the number of the output of a call that has each."""
    signals: dict[frozenset[str], int]
    """For sets of these nodes, the number of the output that waits for each: a signal, behind the results."""
    awaited: dict[int, frozenset[str]] = field(default_factory=dict)
    """The nodes of earlier levels for which nodes of this one wait."""
    arguments: tuple[str, ...] = ()
    function: Any = None


def levels(roles: Roles, inside: set[str], waited: Iterable[str]) -> dict[str, int]:
    """Return the level of each node that is to be in a function.

    A node is on the lowest level of those that read it, not on the first level that is possible, so that few tensors
    pass from one function to another. `waited` are nodes for which other nodes than the step's last ones wait.
    """
    sources = roles.editor.sources()
    found = pieces(sources, inside)
    level_of = {name: level for level, names in enumerate(found) for name in names}
    readers: dict[str, list[str]] = {}
    fixed = {name for name in waited if name in level_of}
    for name, before in sources.items():
        if name not in level_of:
            fixed |= before
            continue
        for source in before:
            readers.setdefault(source, []).append(name)
    for names in reversed(found):
        for name in reversed(names):
            if name not in fixed:
                level_of[name] = min(map(level_of.__getitem__, readers.get(name, ())), default=len(found) - 1)
    return level_of


def filled(
    roles: Roles, unit: int, level_of: Mapping[str, int], read: Iterable[str], awaited: Iterable[frozenset[str]]
) -> list[Level]:
    """Return the levels of a built unit, with their functions.

    `read` are the tensors that nodes outside read, `awaited` the sets of nodes for which nodes outside wait.
    """
    # In an order in which the nodes can run.
    names = grouped((name for name in level_of if roles.of[name] == unit), level_of.__getitem__)
    waits = {level: _before(roles, level, inside, level_of) for level, inside in names.items()}
    results: dict[int, dict[str, None]] = {level: {} for level in names}
    signals: dict[int, dict[frozenset[str], None]] = {level: {} for level in names}
    for source in read:
        if (level := level_of.get(naming.node_of(source))) is not None:
            results[level].setdefault(naming.canonical(source))
    for nodes in awaited:
        for level, waited in apart(roles, nodes, level_of):
            signals[level].setdefault(waited)
    for level, inside in names.items():
        for name in inside:
            for source in naming.data_inputs(roles.editor[name]):
                earlier = level_of.get(naming.node_of(source), level)
                if earlier != level:
                    results[earlier].setdefault(naming.canonical(source))
        for earlier, waited in waits[level].items():
            signals[earlier].setdefault(waited)
    found = (
        Level(
            level, tuple(names[level]), dict(zip(results[level], count(), strict=False)),
            dict(zip(signals[level], count(len(results[level])), strict=False)), waits[level],
        )
        for level in sorted(names)
    )
    return [_with_function(roles, unit, level, level_of) for level in found]


def by_level(nodes: Iterable[str], level_of: Mapping[str, int]) -> dict[int, frozenset[str]]:
    """Return nodes by their levels.

    >>> by_level(["a", "b"], {"a": 0, "b": 1})
    {0: frozenset({'a'}), 1: frozenset({'b'})}
    """
    def level(name: str) -> int:
        if name not in level_of:
            raise UnlikeError(f"other nodes wait for {name}, which is in no function.")
        return level_of[name]

    return {level: frozenset(names) for level, names in grouped(nodes, level).items()}


def apart(roles: Roles, nodes: Iterable[str], level_of: Mapping[str, int]) -> list[tuple[int, frozenset[str]]]:
    """Return nodes by their levels and hosts. So what waits on a server for nodes there waits for no other machine.

    >>> from autodist_core.kernel.units.kinds import Kind
    >>> from autodist_core.kernel.units.unit import Unit
    >>> from autodist_core.step.editor import Editor
    >>> machine = Unit("/job:run/task:1/device:CPU:0", 1, 1, 1)
    >>> other = Unit("/job:run/task:2/device:CPU:0", 2, 2, 1)
    >>> graph = Editor()
    >>> for unit in (machine, other):
    ...     _ = graph.add("NoOp", f"replica{unit.first}/step", device=unit.device)
    ...     _ = graph.add("NoOp", f"replica{unit.first}/lookup", device="/job:run/task:0/device:CPU:0")
    >>> roles = Roles(graph, [Kind((machine, other), (machine, other))])
    >>> names = ["replica1/step", "replica1/lookup"]
    >>> [sorted(nodes) for _, nodes in apart(roles, names, dict.fromkeys(names, 0))]
    [['replica1/lookup'], ['replica1/step']]
    """
    return [
        (level, frozenset(there)) for level, names in by_level(sorted(nodes), level_of).items()
        for there in grouped(sorted(names), roles.host).values()
    ]


def common_host(roles: Roles, nodes: Iterable[str]) -> str:
    """Return the host of nodes that are all on one server; empty if one of them is on its own machine.

    >>> from autodist_core.kernel.units.kinds import Kind
    >>> from autodist_core.kernel.units.unit import Unit
    >>> machines = [Unit(f"/job:run/task:{task}/device:CPU:0", task, task, 1) for task in (1, 2)]
    >>> from autodist_core.step.editor import Editor
    >>> graph = Editor()
    >>> for number in (1, 2):
    ...     _ = graph.add("NoOp", f"replica{number}/lookup", device="/job:run/task:0/device:CPU:0")
    >>> common_host(Roles(graph, [Kind(tuple(machines), tuple(machines))]), ["replica1/lookup"])
    '/job:run/task:0/device:CPU:0'
    """
    hosts = set(map(roles.host, nodes))
    return hosts.pop() if len(hosts) == 1 else ""


def _before(roles: Roles, level: int, inside: Sequence[str], level_of: Mapping[str, int]) -> dict[int, frozenset[str]]:
    """Return the nodes of earlier levels for which nodes of a level wait."""
    waited = {
        naming.node_of(source) for name in inside for source in roles.editor[name].input
        if naming.is_control(source) and level_of.get(naming.node_of(source), level) != level
    }
    return by_level(waited, level_of)


def _with_function(roles: Roles, unit: int, level: Level, level_of: Mapping[str, int]) -> Level:
    """Return a level of a unit with its function."""
    inside = set(level.names)
    body = Body(roles.editor, inside, lambda name: roles.own(name, unit))
    # The nodes that hand on the signals which the function is given, by signal and host.
    handed_on: dict[tuple[str, str], str] = {}

    def control(source: str, reader: str) -> str | None:
        """Return the control input in the function in place of one of the graph; None for what is there anyway."""
        name = naming.node_of(source)
        if name in inside:
            return f"^{body.own(name)}"
        if roles.of[name] and name not in level_of:
            return None  # A node in no function is fed, or is there from the beginning.
        awaited = f"{EARLIER}{level_of[name]}" if name in level_of else f"^{name}"
        here = roles.host(reader)
        if (awaited, here) not in handed_on:
            given, label = body.argument(awaited, tf.int32), f"signal/{len(handed_on)}"
            handed_on[awaited, here] = body.nodes.add("Identity", label, [given], here, T=tf.int32)
        return f"^{handed_on[awaited, here]}"

    for name in level.names:
        node = roles.editor[name]
        controls = (control(source, name) for source in node.input if naming.is_control(source))
        body.copy(name, dict.fromkeys(each for each in controls if each), roles.device(name))
    signals = []
    for nodes, number in level.signals.items():
        zero, there = tf.make_tensor_proto(0, tf.int32), common_host(roles, nodes)
        waits = sorted(f"^{body.own(name)}" for name in nodes)
        signals.append(body.nodes.add("Const", f"returned/{number}", waits, there, dtype=tf.int32, value=zero))
    word = "own" if roles.units[unit].is_machine else "each"
    function = body.function(word, level.results, signals, stateful=True)
    return replace(level, arguments=tuple(body.arguments), function=function)
