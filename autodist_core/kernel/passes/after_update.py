"""AfterUpdate: run the nodes of compute that need reduced gradients, such as a running mean of their norm.

In: the values that the update hands back, `draft.returned`. Out: copies of these nodes on every active replica, which
read and write the replica's own variables. For a step that tracks a norm::

    replica0/track = AssignVariableOp(replica0/norm_mean, update/memory/norm, ^barrier/0)
"""

from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.passes.replicator import copy_node


class AfterUpdate(Kernel):
    """Copies each node that waits for reduced gradients and has an effect, once for every active replica.

    >>> import tensorflow as tf
    >>> from autodist_core.capture import capture
    >>> from autodist_core.capture.example import example_traced
    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> tracked = tf.Variable(0.0)
    >>> def track(gradient):
    ...     tracked.assign(tf.norm(gradient))
    ...     return gradient
    >>> traced = example_traced(changed=track, tracked=tracked)
    >>> draft = example_draft(PS(), before="AfterUpdate", item=capture(traced))
    >>> AfterUpdate().apply(draft)
    >>> draft.targets[-1], draft.editor[draft.targets[-1]].input[1]
    ('replica1/AssignVariableOp', 'update/server_localhost_CPU_0/norm/Squeeze')
    """

    needs = ("returned", "barriers")

    def apply(self, draft: Draft) -> None:
        """Add the copies; their writes wait until all operations that can fail have run."""
        step = draft.step
        effects = draft.after_update.intersection([*step.touches, *step.item.targets])
        for replica in draft.active_replicas:
            for name in step.in_order(step.cone(effects) & draft.after_update):
                copy = copy_node(draft, replica, name)
                if name in effects:
                    draft.editor.control(copy, draft.barriers[step.occurrences[-1]])
