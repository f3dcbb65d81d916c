"""Outputs: the step's results for the whole batch.

In: the copies of compute, and the values that the update hands back. Out: `draft.outputs`, one tensor for each result.

==============================================  ===========================================================
result                                          for the whole batch
==============================================  ===========================================================
one row for each example                        the replicas' rows, one behind the other
computed from the state of metrics              computed once more, from the combined state
computed from gradients                         computed from the reduced gradients
any other                                       what `analysis.results` says
==============================================  ===========================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import tensorflow as tf

from autodist_core.kernel.analysis.results import Joining, joining
from autodist_core.kernel.draft import Draft, copied
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.passes.state_combiner import is_combined, weighted_mean
from autodist_core.step import naming
from autodist_core.step.index import StepIndex, output_type


@dataclass(frozen=True)
class Outputs(Kernel):
    """One value per output of the captured step."""

    needs = ("compute",)
    reads = ("returned",)
    provides = ("outputs",)

    def apply(self, draft: Draft) -> None:
        """Add the nodes that compute each output from all replicas' copies."""
        step = draft.step
        cone = step.cone(naming.node_of(name) for name in step.item.outputs)
        writers = {name for name, touched in step.touches.items() if any(touch.writes for touch in touched)}
        # What writes runs on every replica, and not once more for its value.
        combined = _after_combining(step, cone)
        late = (combined | (draft.after_update & cone)) - writers
        for name in step.in_order(late):
            _copy_late(draft, name, late, draft.end + 2 if name in combined else draft.at(name))
        draft.outputs += [_value(draft, name, late) for name in step.item.outputs]


def _after_combining(step: StepIndex, cone: set[str]) -> set[str]:
    """The nodes between a read of combined state and an output."""
    if step.item.concat_outputs:
        return set()
    # A read before the variable's last write sees what that replica computes with, not the combined state.
    written = {
        touch.variable: step.position[node]
        for node in step.in_order(step.touches) if not step.is_update(node)
        for touch in step.touches[node] if touch.writes and is_combined(step.variables[touch.variable])
    }
    late: set[str] = set()
    for name in step.in_order(cone):
        touched = step.touches.get(name, ())
        reads = any(not t.writes and step.position[name] > written.get(t.variable, step.end) for t in touched)
        if reads or any(naming.node_of(source) in late for source in naming.data_inputs(step.nodes[name])):
            late.add(name)
    return late


def _late(name: str) -> str:
    return f"result/{name}"


def _value(draft: Draft, source: str, late: set[str]) -> str:
    """A captured tensor for the whole batch."""
    name, output = naming.split(source)
    if name in late:
        return naming.tensor(_late(name), output)
    returned = draft.returned.get(naming.canonical(source))
    return returned or _joined(draft, source)


def _copy_late(draft: Draft, name: str, late: set[str], time: int) -> None:
    """A node that runs once, for all; what it reads, it reads at that time."""
    step, first = draft.step, draft.busy[0]
    inputs = []
    for source in naming.data_inputs(step.nodes[name]):
        node = naming.node_of(source)
        if node in step.handle_of:
            variable = step.handle_of[node]
            inputs.append(draft.handle(variable, draft.placement.mirror(variable, first)))
        else:
            inputs.append(_value(draft, source, late))
    touched = step.touches.get(name)
    device = draft.placement.mirror(touched[0].variable, first).device if touched else first.device
    draft.editor.copy(step.nodes[name], _late(name), inputs, device, time if touched else None)


def _joined(draft: Draft, name: str) -> str:
    """One tensor of the whole batch out of the replicas' copies of a captured tensor."""
    step = draft.step
    copies = [copied(replica, name) for replica in draft.busy]
    how = joining(step, name)
    if len(copies) == 1 or how is Joining.SAME:
        return copies[0]
    dtype, label = output_type(step, name), f"joined/{naming.label(name)}"
    if step.item.concat_outputs:
        return draft.join(label, copies, dtype, draft.busy[0].device) if label not in draft.editor else label
    if how is Joining.SUM or (how is Joining.UNKNOWN and dtype.is_integer):
        return draft.add_up(label, copies, dtype, draft.busy[0].device) if label not in draft.editor else label
    if how is Joining.UNKNOWN:
        return copies[0]
    if f"{label}/done" not in draft.editor:
        specs = dict.fromkeys(copies, tf.TensorSpec(None, dtype))
        shares = {}
        if how is Joining.MEAN:
            shares = {draft.share(replica, dtype): tf.TensorSpec((), dtype) for replica in draft.busy}
        made = draft.editor.trace(label, _JOINS[how, dtype == tf.bool], specs | shares, draft.busy[0].device)[0]
        draft.editor.add("Identity", f"{label}/done", [made], draft.busy[0].device, T=dtype)
    return f"{label}/done"


_JOINS: dict[tuple[Joining, bool], Callable[..., tf.Tensor]] = {
    (Joining.MEAN, False): weighted_mean,
    (Joining.LARGEST, False): lambda *parts: reduce(tf.maximum, parts),
    (Joining.SMALLEST, False): lambda *parts: reduce(tf.minimum, parts),
    (Joining.LARGEST, True): lambda *parts: reduce(tf.logical_or, parts),
    (Joining.SMALLEST, True): lambda *parts: reduce(tf.logical_and, parts),
}
"""What makes one tensor of the replicas', and the same for truth values."""
