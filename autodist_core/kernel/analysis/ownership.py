"""Which of the variables that an update writes belong to which trained variable.

A slot belongs to one trained variable and lives where that one lives. Shared state belongs to none of them: every owner
has a copy of it.
"""

from __future__ import annotations

from functools import partial

from autodist_core.step import naming
from autodist_core.step.index import StepIndex, analysis


@analysis
def slots(step: StepIndex) -> dict[str, str]:
    """Optimizer variables that belong to one trained variable, and that variable.

    A slot's new value depends on the gradient or the value of one variable only. Where it depends on several (a
    global norm), shape and name decide; where they do not either, every owner keeps a copy.
    """
    return {name: owners[0] for name, owners in _owners_of_written(step).items() if len(owners) == 1}


@analysis
def shared_state(step: StepIndex) -> frozenset[str]:
    """State that belongs to no single variable: iterations, learning rate, loss scale, a norm of all gradients."""
    return step.written_by_update - set(step.trained) - set(slots(step))


@analysis
def _owners_of_written(step: StepIndex) -> dict[str, tuple[str, ...]]:
    written = sorted(step.written_by_update - set(step.trained))
    direct = {name: _read_for(step, name) for name in written}
    # A slot may be computed from another slot rather than from the gradient (Adafactor's velocity).
    found = {name: {head for head in direct[name] if head in step.trained} for name in written}
    growing = True
    while growing:
        growing = False
        for name in written:
            reached = set().union(*(found[other] for other in direct[name] if other in found))
            growing |= not reached <= found[name]
            found[name] |= reached
    return {name: tuple(_closest(step, name, _in_variable_order(step, found[name]))) for name in written}


def _read_for(step: StepIndex, name: str) -> set[str]:
    """The variables whose gradient or value goes into what the update writes to a variable."""
    writers = [
        node for node, touched in step.touches.items()
        if step.is_update(node) and any(touch.variable == name and touch.writes for touch in touched)
    ]
    cone = step.cone(writers, step.markers.__contains__, partial(_values, step))
    found = {step.markers[node].variable for node in cone if node in step.markers}
    for node in cone:
        if step.is_update(node) and node not in writers:
            found.update(touch.variable for touch in step.touches.get(node, ()))
    return found


def _closest(step: StepIndex, name: str, owners: list[str]) -> list[str]:
    """Of several trained variables, the one of a slot's shape that its name contains; all where none stands out."""
    if len(owners) < 2:
        return owners
    # An operation that writes a slot together with a variable says whose it is.
    beside = {
        touch.variable for touched in step.touches.values() if any(other.variable == name for other in touched)
        for touch in touched
    }.intersection(owners)
    if len(beside) == 1:
        return list(beside)
    shape, (whole, part) = step.variables[name].shape, _whole_and_part(step, name)
    named = [
        owner for owner in owners if step.variables[owner].shape == shape
        and _whole_and_part(step, owner)[1] == part
        and _whole_and_part(step, owner)[0].replace("/", "_") in whole
    ]
    longest = max((len(owner) for owner in named), default=0)
    return [owner for owner in named if len(owner) == longest] or owners


def _whole_and_part(step: StepIndex, name: str) -> tuple[str, str]:
    whole = step.variables[name].part_of or name
    return whole, name.removeprefix(whole)


def _in_variable_order(step: StepIndex, names: set[str]) -> list[str]:
    return [variable.name for variable in step.item.variables if variable.name in names]


def _values(step: StepIndex, name: str) -> list[str]:
    """The nodes that go into a node's value, whichever branch is taken."""
    node = step.nodes[name]
    inputs = [naming.node_of(source) for source in naming.data_inputs(node)]
    return inputs[:1] if node.op == "Switch" else inputs
