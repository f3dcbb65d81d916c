"""Find out which variables of an optimizer belong to which trained variable.

In: the index of a captured step. Out: the slots. For Adam::

    slots(step)    {"kernel_momentum": "kernel", "kernel_velocity": "kernel", ...}

A slot belongs to one trained variable, and is on the same devices.
"""

from functools import partial

from autodist_core.step import naming
from autodist_core.step.index import StepIndex, analysis
from autodist_core.step.reaching import reached


@analysis
def slots(step: StepIndex) -> dict[str, str]:
    """Return for each slot the trained variable to which it belongs.

    A slot's new value depends on the gradient or the value of one trained variable. If it depends on several, as with a
    global norm, its shape and its name decide. If they decide nothing, it is no slot, and every owner has a copy.

    >>> from autodist_core.capture.example import example_step
    >>> slots(StepIndex(example_step()))
    {'velocity': 'kernel'}
    """
    written = sorted(step.written_by_update - set(step.trained))
    direct = {name: _read_for(step, name) for name in written}
    found: dict[str, str] = {}
    for name in written:
        # A slot may be computed from another slot rather than from the gradient (Adafactor's velocity).
        behind = reached(direct[name], lambda other: direct.get(other, ()))
        owners = _closest(step, name, [each for each in step.variables if each in step.trained and each in behind])
        if len(owners) == 1:
            found[name] = owners[0]
    return found


def _read_for(step: StepIndex, name: str) -> set[str]:
    """Return the variables whose gradient or value the update needs for its writes to a variable."""
    writers = {node for node in step.touching.get(name, ()) if step.is_update(node) and name in step.written_by([node])}
    cone = step.cone(writers, step.markers.__contains__, partial(_values, step))
    found = {step.markers[node].variable for node in cone if node in step.markers}
    return found | step.touched_by(cone & step.update_of.keys() - writers)


def _closest(step: StepIndex, name: str, owners: list[str]) -> list[str]:
    """Return the trained variable of a slot's shape whose name the slot's name contains; all if there is none."""
    if len(owners) < 2:
        return owners
    # If one operation writes a slot and one of the trained variables, the slot belongs to that variable.
    beside = step.touched_by(step.touching[name]).intersection(owners)
    if len(beside) == 1:
        return list(beside)
    shape, (variable, part) = step.variables[name].shape, _variable_and_part(step, name)
    named = [
        owner for owner in owners if step.variables[owner].shape == shape
        and _variable_and_part(step, owner)[1] == part
        and _variable_and_part(step, owner)[0].replace("/", "_") in variable
    ]
    longest = max((len(owner) for owner in named), default=0)
    return [owner for owner in named if len(owner) == longest] or owners


def _variable_and_part(step: StepIndex, name: str) -> tuple[str, str]:
    variable = step.variables[name].part_of or name
    return variable, name.removeprefix(variable)


def _values(step: StepIndex, name: str) -> list[str]:
    """Return the nodes whose values a node's value needs. The predicate of a `Switch` is not among them."""
    node = step.nodes[name]
    inputs = [naming.node_of(source) for source in naming.data_inputs(node)]
    return inputs[:1] if node.op == "Switch" else inputs
