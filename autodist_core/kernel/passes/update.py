"""Update: run the captured update once for each owner, on reduced gradients, for the owner's variables.

In: the reduced gradients and the barriers. Out: each owner's portion of the update, and the values that the update
hands back to compute, `draft.returned`. For two servers with one variable each, and a global norm::

    update/server_a/norm_of_kernel = Sum(Square(reduced/server_a/0/kernel))
    update/server_b/norm_of_bias   = Sum(Square(reduced/server_b/0/bias))
    update/server_a/step           = AssignSubVariableOp(kernel, ..., ^barrier/0)
    update/server_b/step           = AssignSubVariableOp(bias, ..., ^barrier/0)

`Portions` says which owner runs which nodes. The kernel `Order` adds the order between reads and writes later. Each
owner has a copy of the shared state.

Besides, what compressors keep is written behind the same barriers, so a step that fails leaves it as it was::

    kept/0/write/compressor/error/kernel.replica1 = AssignVariableOp(handle, left, ^barrier/0)

In the end, each active replica gets copies of the nodes of compute that need reduced gradients, which read and write
the replica's own variables. For a step that tracks a norm::

    replica0/track = AssignVariableOp(replica0/norm_mean, update/memory/norm, ^barrier/0)
"""

import tensorflow as tf

from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.passes.replicator import copy_node
from autodist_core.kernel.passes.synchronizer.reduction import reduced_for
from autodist_core.kernel.placement.placement import Owner, Replica
from autodist_core.kernel.placement.update_portions import Portions
from autodist_core.step import naming
from autodist_core.step.grouping import by_key


class Update(Kernel):
    """Copies the update once for each owner.

    >>> from autodist_core.kernel.example import example_change
    >>> from autodist_core.strategy import PS, AllReduce
    >>> example_change(PS(), "Update", "AssignSubVariableOp")
    'AssignSubVariableOp: 0 -> 1'
    >>> example_change(AllReduce(), "Update", "AssignSubVariableOp")
    'AssignSubVariableOp: 0 -> 2'
    """

    needs = ("reduced", "barriers")
    reads = ("local", "new_values")
    provides = ("reduced", "returned", "added")

    def apply(self, draft: Draft) -> None:
        """Write what compressors keep, copy each owner's portion, and then what waits for reduced gradients."""
        for added, value, occurrence in draft.new_values:
            name, dtype = f"kept/{occurrence}/write/{naming.safe(added.name)}", tf.as_dtype(added.dtype)
            inputs = [draft.kept(added), value, f"^{draft.barriers[occurrence]}"]
            draft.targets.append(
                draft.editor.add("AssignVariableOp", name, inputs, added.device, 2 * occurrence + 1, dtype=dtype)
            )
        owners = draft.placement.owners
        portions = Portions(draft.step, draft.placement, owners)
        draft.targets += [portions.home(each, name).copy_of(name) for each in owners for name in portions.roots(each)]
        for owner, name in portions:
            _copy(draft, owner, name, portions)
        for name in draft.placement.handed_back(draft.step):
            _hand_back(draft, owners[0], name, portions)
        draft.targets += _unread(draft, portions)
        _copy_what_waits(draft)


def _copy_what_waits(draft: Draft) -> None:
    """Copy what waits for reduced gradients. Its writes wait until all operations that can fail have run."""
    step, waiting = draft.step, draft.placement.after_update(draft.step)
    effects = waiting.intersection([*step.touches, *step.item.targets])
    for replica in draft.active_replicas:
        for name in step.in_order(step.cone(effects) & waiting):
            copy = copy_node(draft, replica, name, draft.returned)
            if name in effects:
                draft.editor.control(copy, draft.barriers[step.occurrences[-1]])


def _unread(draft: Draft, portions: Portions) -> list[str]:
    """Return the sums of gradients that some replicas do not use: a collective waits until every replica runs it."""
    step, found = draft.step, []
    markers = by_key((gradient.key, marker) for marker, gradient in step.markers.items())
    for owner in (each for each in draft.placement.owners if each.replica is not None):
        for gradient in step.item.gradients:
            rows = draft.reduced.get((*gradient.key, owner.name))
            if rows is not None and not any(portions.reads(owner, marker) for marker in markers[gradient.key]):
                found.append(naming.node_of(rows.values))
    return found


def _copy(draft: Draft, owner: Owner, name: str, portions: Portions) -> None:
    step, placement = draft.step, draft.placement
    inputs = [
        renamed for source in step.nodes[name].input
        if (renamed := _source(draft, owner, name, source, portions)) is not None
    ]
    touched = step.touches.get(name)
    device = placement.owned_copy(touched[0].variable, owner).device if touched else owner.device
    copy = draft.editor.copy(step.nodes[name], owner.copy_of(name), inputs, device, draft.at(name) if touched else None)
    path = naming.branch_of(step.nodes[name])
    if path:
        draft.editor.mark_branch(copy.name, [portions.home(owner, pivot).copy_of(pivot) for pivot in path])
    if name in step.writers:
        draft.editor.control(copy.name, draft.barriers[step.update_of[name]])


def _hand_back(draft: Draft, owner: Owner, name: str, portions: Portions) -> None:
    step = draft.step
    if name in step.markers:
        draft.returned[name] = _gradient(draft, owner, name)
        return
    copy = portions.home(owner, name).copy_of(name)
    used = [source for node in draft.placement.after_update(step) for source in naming.data_inputs(step.nodes[node])]
    for source in (*used, *step.item.outputs):
        node, output = naming.split(source)
        if node == name:
            draft.returned[naming.canonical(source)] = naming.tensor(copy, output)


def _gradient(draft: Draft, owner: Owner, marker: str) -> str:
    gradient = draft.step.markers[marker]
    rows = reduced_for(draft, gradient, owner)
    return rows.indices if gradient.indices and naming.node_of(gradient.indices) == marker else rows.values


def _source(draft: Draft, owner: Owner, reader: str, source: str, portions: Portions) -> str | None:
    step = draft.step
    name, output = naming.split(source)
    if name in step.handle_of:
        if output < 0:
            return None
        variable = step.handle_of[name]
        return draft.handle(variable, draft.placement.owned_copy(variable, owner))
    if name in step.markers:
        return None if output < 0 else _gradient(draft, owner, name)
    if name in step.whole:
        return naming.tensor(_fed_replica(draft, owner).copy_of(name), output) if output >= 0 else None
    home = portions.home(owner, name)
    if output >= 0:
        return naming.tensor(home.copy_of(name), output)
    if name in step.pivots:
        return f"^{home.copy_of(name)}"
    # A captured control edge from a branch that is not taken would end nodes outside the branch: leave it out.
    path, around = (naming.branch_of(step.nodes[node]) for node in (name, reader))
    needed = path == around[: len(path)] and home == owner and portions.runs(owner, name)
    return f"^{owner.copy_of(name)}" if needed else None


def _fed_replica(draft: Draft, owner: Owner) -> Replica:
    """Return the replica whose inputs an owner reads: its own, or the first one that has examples."""
    own = [replica for replica in draft.active_replicas if replica.index == owner.replica]
    return own[0] if own else draft.active_replicas[0]
