"""Outputs: the step's results for the whole batch.

In: the copies of compute, and the values that the update hands back. Out: `draft.outputs`, one tensor for each result.
For a step that returns the mean loss and the norm of the gradient::

    loss    joined/loss/output0/done = (loss of replica 0) * its share + (loss of replica 1) * its share
    norm    update/server_localhost_CPU_0/norm/Squeeze, of the reduced gradient

==============================================  ===========================================================
result                                          for the whole batch
==============================================  ===========================================================
one row for each example                        the replicas' rows, one behind the other
computed from the state of metrics              computed once more, from the combined state
computed from gradients                         computed from the reduced gradients
any other                                       what `joining` says
==============================================  ===========================================================

For a loss, and the norm of a gradient that a server has:

>>> from autodist_core.kernel.example import example_draft
>>> from autodist_core.strategy import PS
>>> draft = example_draft(PS(), before="Outputs")
>>> Outputs().apply(draft)
>>> print(*draft.outputs, sep="; ")
joined/loss/output0/done; update/server_localhost_CPU_0/norm/Squeeze
"""

import tensorflow as tf

from autodist_core.kernel.analysis.gradient_flow import first_written
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.passes.state_combiner import is_combined, joined_entries
from autodist_core.kernel.placement.placement import Replica
from autodist_core.step import naming
from autodist_core.step.graph_item import Joined
from autodist_core.step.index import StepIndex, analysis, output_type


class Outputs(Kernel):
    """Makes one value for each output of the captured step.

    >>> from autodist_core.kernel.example import example_change
    >>> from autodist_core.strategy import PS
    >>> example_change(PS(), "Outputs", "AddV2")
    'AddV2: 3 -> 4'
    """

    needs = ("compute",)
    reads = ("returned",)
    provides = ("outputs",)

    def apply(self, draft: Draft) -> None:
        """Add the nodes that compute each output from all replicas' copies."""
        step = draft.step
        cone = step.cone(naming.node_of(name) for name in step.item.outputs)
        # A node that writes runs on every replica. It is not run once more for its value.
        combined = _after_combining(step, cone)
        recomputed = (combined | (draft.placement.after_update(step) & cone)) - step.writers
        of_each = any(joining(step, name) == "each" for name in step.item.outputs)
        for name in step.in_order(recomputed):
            if of_each and name in draft.crossing:
                _recompute_of_all(draft, name, recomputed)
                continue
            for replica in draft.active_replicas if of_each else [None]:
                _recompute(draft, name, recomputed, draft.end + 2 if name in combined else draft.at(name), replica)
        for name in step.item.outputs:
            if joining(step, name) == "each":
                draft.outputs += [_value(draft, name, recomputed, replica) for replica in draft.active_replicas]
            else:
                draft.outputs.append(_value(draft, name, recomputed))


def _after_combining(step: StepIndex, cone: set[str]) -> set[str]:
    """Return the nodes between a read of combined state and an output."""
    if step.item.concat_outputs:
        return set()
    # A read before the variable's last write gives the replica's own value, and not the combined state.
    written = {
        variable: step.position[node] for node in step.in_order(step.writers - step.update_of.keys())
        for variable in step.written_by([node]) if is_combined(step.variables[variable])
    }
    recomputed: set[str] = set()
    for name in step.in_order(cone):
        touched = step.touches.get(name, ())
        reads = any(not t.writes and step.position[name] > written.get(t.variable, step.end) for t in touched)
        if reads or any(naming.node_of(source) in recomputed for source in naming.data_inputs(step.nodes[name])):
            recomputed.add(name)
    return recomputed


def _recomputed(name: str, replica: Replica | None) -> str:
    return f"result/{name}" if replica is None else f"result/{replica.prefix}/{name}"


def _value(draft: Draft, source: str, recomputed: set[str], replica: Replica | None = None) -> str:
    """Return the value of a captured tensor for the whole batch, or for one replica's part of it."""
    name, output = naming.split(source)
    if name in recomputed:
        return naming.tensor(_recomputed(name, replica), output)
    returned = draft.returned.get(naming.canonical(source))
    return returned or (_joined(draft, source) if replica is None else replica.copy_of(source))


def _recompute(draft: Draft, name: str, recomputed: set[str], time: int, replica: Replica | None) -> None:
    """Add a copy of a node that runs for the whole batch, or a replica's part; it reads variables at this time."""
    step, first = draft.step, draft.active_replicas[0]
    inputs = []
    for source in naming.data_inputs(step.nodes[name]):
        node = naming.node_of(source)
        if node in step.handle_of:
            variable = step.handle_of[node]
            inputs.append(draft.handle(variable, draft.placement.mirror(variable, first)))
        else:
            inputs.append(_value(draft, source, recomputed, replica))
    touched = step.touches.get(name)
    device = draft.placement.mirror(touched[0].variable, first).device if touched else first.device
    draft.editor.copy(step.nodes[name], _recomputed(name, replica), inputs, device, time if touched else None)


def _recompute_of_all(draft: Draft, name: str, recomputed: set[str]) -> None:
    """Add what one node makes of all replicas' values that were computed once more, as of a sum over the replicas."""
    (source,), device = naming.data_inputs(draft.step.nodes[name]), draft.active_replicas[0].device
    dtype = output_type(draft.step, name)
    values = [_value(draft, source, recomputed, each) for each in draft.active_replicas]
    together = draft.crossing[name](f"result/{name}", values, dtype, device)
    for replica in draft.active_replicas:
        draft.editor.add("Identity", _recomputed(name, replica), [together], replica.device, T=dtype)


def _joined(draft: Draft, name: str) -> str:
    """Return one tensor for the whole batch, made of the replicas' copies of a captured tensor."""
    step = draft.step
    copies, device = [replica.copy_of(name) for replica in draft.active_replicas], draft.active_replicas[0].device
    how = joining(step, name)
    dtype, label = output_type(step, name), f"joined/{naming.label(name)}"
    if len(copies) == 1 or how == "same" or (not how and not dtype.is_integer):
        return copies[0]
    if how == "rows":
        axis = _known(step)[naming.canonical(name)].axis if naming.canonical(name) in _known(step) else 0
        return draft.join(label, copies, dtype, device, axis) if label not in draft.editor else label
    if how in ("sum", ""):
        return draft.add_up(label, copies, dtype, device) if label not in draft.editor else label
    if f"{label}/done" not in draft.editor:
        made = joined_entries(draft, label, how, copies, tf.TensorSpec(None, dtype), device)
        draft.editor.add("Identity", f"{label}/done", [made], device, T=dtype)
    return f"{label}/done"


def joining(step: StepIndex, name: str) -> str:
    """Return how the replicas' values of a tensor become the value for the whole batch; empty if that is not known::

        tf.constant(3)               same     it does not depend on the batch
        reduce_mean(loss)            mean     a float is taken for a mean over the examples
        reduce_sum(lengths)          sum      a tensor is joined as capture has found out, if it has
        reduce_max(lengths)          max
        reduce_sum(lengths) // 2              an integer that no combination of the replicas' values gives

    >>> import tensorflow as tf
    >>> from autodist_core import GraphItem
    >>> from autodist_core.step.graph_item import Joined, Tensor
    >>> @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, "x")])
    ... def results(x):
    ...     return tf.reduce_sum(x, name="sum"), tf.reduce_sum(x) // 2, tf.constant(3)
    >>> graph = results.get_concrete_function().graph
    >>> x = (Tensor("x", "int32", (None,)),)
    >>> graph_bytes = graph.as_graph_def().SerializeToString()
    >>> step = StepIndex(GraphItem((), inputs=x, joined=(Joined("sum", "sum"),), graph_bytes=graph_bytes))
    >>> [joining(step, tensor.op.inputs[0].name) for tensor in graph.outputs]
    ['sum', '', 'same']
    """
    if naming.canonical(name) in _known(step):
        return _known(step)[naming.canonical(name)].how
    if not differs(step, name):
        return "same"
    if step.item.concat_outputs:
        return "rows"
    dtype = output_type(step, name)
    return "mean" if dtype.is_floating or dtype.is_complex else ""


@analysis
def _known(step: StepIndex) -> dict[str, Joined]:
    return {each.tensor: each for each in step.item.joined}


def differs(step: StepIndex, name: str) -> bool:
    """Whether a tensor is computed from the batch, or from a variable that compute has written before.

    >>> from autodist_core.capture.example import example_step
    >>> differs(StepIndex(example_step()), "loss")
    True
    """
    cone = step.cone([naming.node_of(name)])
    inputs = {naming.node_of(tensor.name) for tensor in step.item.inputs} | {step.item.examples, step.item.replica}
    written = first_written(step)
    return any(
        node in inputs or any(step.position[node] > written.get(t.variable, step.end) for t in touched)
        for node in cone for touched in [step.touches.get(node, ())]
    )
