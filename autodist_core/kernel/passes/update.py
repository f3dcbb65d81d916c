"""Update: run the captured update once for each owner, on reduced gradients, for the owner's variables.

In: the reduced gradients and the barriers. Out: each owner's slice of the update, and the values that the update hands
back to compute, `draft.returned`. For two servers with one variable each, and a global norm::

    update/server_a/norm_of_kernel = Sum(Square(reduced/server_a/0/kernel))
    update/server_b/norm_of_bias   = Sum(Square(reduced/server_b/0/bias))
    update/server_a/step           = AssignSubVariableOp(kernel, ..., ^barrier/0)
    update/server_b/step           = AssignSubVariableOp(bias, ..., ^barrier/0)

A slice has the nodes that an owner's writes need, found along data edges. The kernel `Order` adds the order between
reads and writes later. Each owner has a copy of the shared state. A value that depends on the variables of one other
owner only is computed there, and sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autodist_core.errors import CaptureError, NotYetError
from autodist_core.kernel.analysis.gradient_flow import reads_own
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.passes.synchronizer.reduction import reduced_for
from autodist_core.kernel.placement.placement import Owner
from autodist_core.step import naming
from autodist_core.step.draws import Stream
from autodist_core.step.index import StepIndex


@dataclass(frozen=True)
class Update(Kernel):
    """Copies the update once for each owner."""

    needs = ("reduced", "barriers")
    provides = ("reduced", "returned")

    def apply(self, draft: Draft) -> None:
        """Copy each owner's slice; raise a `CaptureError` if a write of the update belongs to no owner."""
        slices = _Slices(draft)
        for owner in draft.placement.owners:
            for name in _roots(draft, owner):
                slices.assign(owner, name)
                draft.targets.append(_copied(slices.home(owner, name), name))
        first = draft.placement.owners[0]
        for name in draft.handed_back:
            slices.assign(first, name)
        for owner, name in slices:
            _copy(draft, owner, name, slices)
        for name in draft.handed_back:
            _hand_back(draft, first, name, slices)
        left = [name for name in _writes(draft.step) if not slices.has(name)]
        if left:
            raise CaptureError(f"the update writes through {left[0]!r} ({draft.step.nodes[left[0]].op}), "
                               "which belongs to no variable's owner.")


def _writes(step: StepIndex) -> list[str]:
    return [
        name for name, touched in step.touches.items()
        if step.is_update(name) and any(touch.writes for touch in touched)
    ]


def _roots(draft: Draft, owner: Owner) -> list[str]:
    """Return the writes of an owner's variables. The first owner also has assertions, printing and the like."""
    step = draft.step
    own = _variables_of(draft, owner)
    writes = [
        name for name in _writes(step)
        if any(touch.writes and touch.variable in own for touch in step.touches[name])
    ]
    rest: list[str] = []
    if owner == draft.placement.owners[0]:
        written = set(_writes(step))
        rest = [name for name in step.item.targets if step.is_update(name) and name not in written]
    return list(dict.fromkeys([*writes, *rest]))


def _variables_of(draft: Draft, owner: Owner) -> frozenset[str]:
    return owner.variables | draft.placement.optimizer_state


class _Slices:
    """The slices of all owners: which owners run which nodes of the update."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._owners: dict[str, dict[str, Owner]] = {}
        self._groups = self._all_groups()

    def __iter__(self) -> Iterator[tuple[Owner, str]]:
        for name in self._draft.step.in_order(self._owners):
            for owner in self._owners[name].values():
                yield owner, name

    def has(self, name: str) -> bool:
        """Whether any owner runs a node."""
        return name in self._owners

    def runs(self, owner: Owner, name: str) -> bool:
        """Whether an owner runs a node."""
        return owner.name in self._owners.get(name, ())

    def assign(self, owner: Owner, name: str) -> None:
        """Let an owner have a node's value: this owner, or the owner of the node's variables, runs the node."""
        step = self._draft.step
        waiting = [(owner, name)]
        while waiting:
            asking, name = waiting.pop()
            if name in step.markers or name in step.handle_of:
                continue
            home = self.home(asking, name)
            if not self.runs(home, name):
                self._owners.setdefault(name, {})[home.name] = home
                waiting.extend((home, source) for source in step.sources(name))

    def home(self, owner: Owner, name: str) -> Owner:
        """Return the owner that runs a node whose value an owner needs."""
        placement = self._draft.placement
        for touch in self._draft.step.touches.get(name, ()):
            if touch.variable in _variables_of(self._draft, owner):
                return owner
            if touch.variable in placement.owner_of:
                return placement.owner(placement.owner_of[touch.variable])
        groups = self._groups.get(name, frozenset())
        if len(groups) == 1 and _group(owner) not in groups:
            return placement.owner(next(iter(groups)))
        return owner

    def _all_groups(self) -> dict[str, frozenset[str]]:
        """Return for each node the owners of the variables and gradients that it depends on; replicas count as one."""
        step, owner_of = self._draft.step, self._draft.placement.owner_of
        found: dict[str, frozenset[str]] = {}
        for name in step.position:
            if name in step.markers:
                found[name] = frozenset({owner_of[step.markers[name].variable]})
                continue
            touched = {
                owner_of[touch.variable] for touch in step.touches.get(name, ()) if touch.variable in owner_of
            }
            inputs = (found.get(source, frozenset()) for source in step.sources(name))
            found[name] = frozenset(touched).union(*inputs)
        return found


def _group(owner: Owner) -> str:
    """Return an owner's name in `Placement.owner_of`, which has `replica0` for all replicas."""
    return owner.name if owner.replica is None else "replica0"


def _copy(draft: Draft, owner: Owner, name: str, slices: _Slices) -> None:
    step, placement = draft.step, draft.placement
    _check(draft, owner, name)
    inputs = [
        renamed for source in step.nodes[name].input
        if (renamed := _source(draft, owner, name, source, slices)) is not None
    ]
    touched = step.touches.get(name)
    device = placement.owned_copy(touched[0].variable, owner).device if touched else owner.device
    copy = draft.editor.copy(
        step.nodes[name], _copied(owner, name), inputs, device, draft.at(name) if touched else None
    )
    path = naming.branch_of(step.nodes[name])
    if path:
        draft.editor.mark_branch(copy.name, [_copied(slices.home(owner, pivot), pivot) for pivot in path])
    if touched and any(touch.writes for touch in touched):
        draft.editor.control(copy.name, draft.barriers[step.update_of[name]])


def _check(draft: Draft, owner: Owner, name: str) -> None:
    step = draft.step
    node = step.nodes[name]
    if node.op.startswith("Placeholder"):
        raise CaptureError(
            f"the update, or what a step does to its gradients before apply, reads the step's input {name!r}, of which "
            "each replica has a part (inputs are numbered in the order of x, y and sample_weight). A value of the "
            "batch, such as its loss, may not decide what is applied: let the update depend on gradients and variables "
            "only. keras.optimizers.LossScaleOptimizer leaves out a step whose gradients are not finite."
        )
    if name in reads_own(step) and len(draft.placement.replicas) > 1:
        raise CaptureError(
            f"what is made of gradients reads {reads_own(step)[name]!r} at {name!r} ({node.op}) when each replica "
            "has its own value of it, from its part of the batch. Read it before the step writes it, or after apply."
        )
    draws = any(draw.stream is Stream.UNSEEDED for draw in step.draws.get(name, ()))
    # An idle replica does not run the nodes of compute that change the state of a seed generator.
    draws |= any(
        step.variables[touch.variable].kind == "seed" and touch.variable in step.written_by_compute
        for touch in step.touches.get(name, ())
    )
    if draws and owner.replica is not None and len(draft.placement.replicas) > 1:
        raise NotYetError(
            f"the update draws random numbers at {name!r} ({node.op}), and every replica would draw its own. "
            "Use PS() for these variables, or set a seed (keras.utils.set_random_seed) if it is an op's."
        )
    for touch in step.touches.get(name, ()):
        if touch.variable in draft.placement.owner_of and touch.variable not in _variables_of(draft, owner):
            raise CaptureError(
                f"one operation of the update, {name!r} ({node.op}), takes variables of different owners: "
                f"{', '.join(sorted({t.variable for t in step.touches[name]}))}. "
                "Give these variables one synchronizer and one destination."
            )


def _hand_back(draft: Draft, owner: Owner, name: str, slices: _Slices) -> None:
    step = draft.step
    if name in step.markers:
        draft.returned[name] = _gradient(draft, owner, name)
        return
    copy = _copied(slices.home(owner, name), name)
    used = [source for node in draft.after_update for source in naming.data_inputs(step.nodes[node])]
    for source in (*used, *step.item.outputs):
        node, output = naming.split(source)
        if node == name:
            draft.returned[naming.canonical(source)] = naming.tensor(copy, output)


def _gradient(draft: Draft, owner: Owner, marker: str) -> str:
    gradient = draft.step.markers[marker]
    rows = reduced_for(draft, gradient, owner)
    return rows.indices if gradient.indices and naming.node_of(gradient.indices) == marker else rows.values


def _source(draft: Draft, owner: Owner, reader: str, source: str, slices: _Slices) -> str | None:
    step = draft.step
    name, output = naming.split(source)
    if name in step.handle_of:
        if output < 0:
            return None
        variable = step.handle_of[name]
        return draft.handle(variable, draft.placement.owned_copy(variable, owner))
    if name in step.markers:
        return None if output < 0 else _gradient(draft, owner, name)
    home = slices.home(owner, name)
    if output >= 0:
        return naming.tensor(_copied(home, name), output)
    if name in step.pivots:
        return f"^{_copied(home, name)}"
    # A captured control edge from a branch that is not taken would end nodes outside the branch: leave it out.
    path, around = (naming.branch_of(step.nodes[node]) for node in (name, reader))
    needed = path == around[: len(path)] and home == owner and slices.runs(owner, name)
    return f"^{_copied(owner, name)}" if needed else None


def _copied(owner: Owner, name: str) -> str:
    return f"update/{owner.name}/{name}"
