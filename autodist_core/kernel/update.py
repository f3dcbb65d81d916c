"""Run the captured update once per owner, on reduced gradients, for the variables that the owner holds.

Each owner gets the union of the slices of what it owns, plus its own copy of the state that all updates share. A slice
is what the owner's writes need, found along data edges; order among variables is rebuilt later from reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from autodist_core.errors import CaptureError, NotYetError
from autodist_core.kernel import editor
from autodist_core.kernel.barriers import barrier
from autodist_core.kernel.captured import Captured, is_stateful
from autodist_core.kernel.kernel import Draft, Kernel
from autodist_core.kernel.placement import Owner


@dataclass(frozen=True)
class Update(Kernel):
    """One update graph per owner."""

    def apply(self, draft: Draft) -> None:
        """Copy each owner's slice; every write of the captured update ends up with some owner."""
        placed: set[str] = set()
        for owner in draft.placement.owners:
            placed |= _add_owner(draft, owner)
        left = [name for name in _writes(draft.captured) if name not in placed]
        if left:
            raise CaptureError(f"the update writes through {left[0]!r} ({draft.captured.nodes[left[0]].op}), "
                               "which belongs to no variable's owner.")


def _writes(captured: Captured) -> list[str]:
    return [
        name for name, touched in captured.touches.items()
        if captured.is_update(name) and any(touch.writes for touch in touched)
    ]


def _add_owner(draft: Draft, owner: Owner) -> set[str]:
    captured, placement = draft.captured, draft.placement
    held = owner.variables | placement.optimizer_state
    writes = [
        name for name in _writes(captured)
        if any(touch.writes and touch.variable in held for touch in captured.touches[name])
    ]
    whole = [name for name in captured.item.targets if captured.is_update(name)] if _holds_all(draft, owner) else []
    cone = captured.cone([*writes, *whole], lambda name: name in captured.markers)
    names = captured.in_order(cone - set(captured.markers) - set(captured.handle_of))
    present = set(names)
    for name in names:
        _check(draft, owner, name, held)
        node = captured.nodes[name]
        inputs = []
        for source in node.input:
            renamed = _source(draft, owner, source, present)
            if renamed is not None:
                inputs.append(renamed)
        touched = captured.touches.get(name)
        device = placement.held(touched[0].variable, owner).device if touched else owner.device
        copy = draft.editor.copy(node, _copied(owner, name), inputs, device, draft.at(name) if touched else None)
        if touched and any(touch.writes for touch in touched):
            copy.input.append(f"^{barrier(captured.update_of[name])}")
    draft.targets.extend(_copied(owner, name) for name in dict.fromkeys([*writes, *whole]))
    return set(writes)


def _holds_all(draft: Draft, owner: Owner) -> bool:
    return set(draft.captured.trained) <= owner.variables


def _check(draft: Draft, owner: Owner, name: str, held: frozenset[str]) -> None:
    captured = draft.captured
    node = captured.nodes[name]
    if node.op.startswith("Placeholder"):
        raise CaptureError(
            f"the optimizer's update reads the step's input {name!r}. Only gradients may pass from the model to "
            "optimizer.apply: compute what else it needs from variables."
        )
    draws = "seed2" in node.attr and is_stateful(node) and not node.attr["seed"].i and not node.attr["seed2"].i
    draws |= any(captured.variables[touch.variable].kind == "seed" for touch in captured.touches.get(name, ()))
    if draws and owner.replica is not None and len(draft.placement.replicas) > 1:
        raise NotYetError(
            f"the update draws random numbers at {name!r} ({node.op}), and every replica would draw its own. "
            "Use PS() for these variables, or set a seed (keras.utils.set_random_seed) if it is an op's."
        )
    for touch in captured.touches.get(name, ()):
        trained = touch.variable in draft.placement.owner_of
        if trained and touch.variable not in held:
            raise NotYetError(
                f"the update that {owner.name} runs goes through {name!r} ({node.op}), which also "
                f"{'writes' if touch.writes else 'reads'} {touch.variable!r} of "
                f"{draft.placement.owner_of[touch.variable]}. "
                "Give these variables one synchronizer and one destination."
            )


def _source(draft: Draft, owner: Owner, source: str, present: set[str]) -> str | None:
    captured = draft.captured
    name, output = editor.split(source)
    if name in captured.handle_of:
        if output < 0:
            return None
        variable = captured.handle_of[name]
        return draft.handle(variable, draft.placement.held(variable, owner))
    if name in captured.markers:
        if output < 0:
            return None
        gradient = captured.markers[name]
        rows = draft.reduced_for(gradient, owner)
        return rows.indices if gradient.indices and editor.node_of(gradient.indices) == name else rows.values
    if output >= 0:
        return editor.tensor(_copied(owner, name), output)
    return f"^{_copied(owner, name)}" if name in present and captured.is_update(name) else None


def _copied(owner: Owner, name: str) -> str:
    return f"update/{owner.name}/{name}"
