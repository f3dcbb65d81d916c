"""Residuals: write the new values of added variables, such as compressors' residuals, together with the update.

In: the new values, `draft.new_values`. Out: one write for each, behind the barrier of its update::

    kept/0/write/compressor/error/kernel.replica1 = AssignVariableOp(handle, left, ^barrier/0)

The values were computed along with the gradients. They wait for the barrier as every write of the update does, so a
step that fails leaves them as they were.
"""

import tensorflow as tf

from autodist_core.kernel.added_variables import AddedVariable
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.step import naming


class Residuals(Kernel):
    """Writes the new values of added variables.

    >>> from autodist_core.kernel.example import example_change
    >>> from autodist_core.strategy import AllReduce
    >>> example_change(AllReduce(compressor="HorovodCompressorEF"), "Residuals", "AssignVariableOp")
    'AssignVariableOp: 0 -> 2'
    """

    needs = ("new_values", "barriers")
    provides = ("added",)

    def apply(self, draft: Draft) -> None:
        """Add one write for each new value, behind the barrier of its update."""
        for new in draft.new_values:
            variable, occurrence = new.variable, new.occurrence
            name = f"kept/{occurrence}/write/{naming.safe(variable.name)}"
            inputs = [handle(draft, variable), new.value, f"^{draft.barriers[occurrence]}"]
            dtype = tf.as_dtype(variable.dtype)
            draft.targets.append(
                draft.editor.add("AssignVariableOp", name, inputs, variable.device, 2 * occurrence + 1, dtype=dtype)
            )


def recall(draft: Draft, variable: AddedVariable, occurrence: int) -> str:
    """Add a read of an added variable, before the update of an occurrence writes it; return the read's name.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce())
    >>> name = recall(draft, AddedVariable("error/kernel", "/device:CPU:0", "float32", (3, 1)), occurrence=0)
    >>> name, list(draft.editor[name].input)
    ('kept/0/read/error/kernel', ['kept/error/kernel'])
    """
    name, dtype = f"kept/{occurrence}/read/{naming.safe(variable.name)}", tf.as_dtype(variable.dtype)
    inputs = [handle(draft, variable)]
    return draft.editor.add("ReadVariableOp", name, inputs, variable.device, 2 * occurrence, dtype=dtype)


def handle(draft: Draft, variable: AddedVariable) -> str:
    """Return the handle of an added variable, and add it if it is not there.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce())
    >>> handle(draft, AddedVariable("error/kernel", "/device:CPU:0", "float32", (3, 1)))
    'kept/error/kernel'
    >>> print(*draft.added)
    error/kernel : float32[3,1]
    """
    name = f"kept/{naming.safe(variable.name)}"
    if name not in draft.editor:
        draft.added.append(variable)
        draft.editor.add(
            "VarHandleOp", name, device=variable.device, dtype=tf.as_dtype(variable.dtype),
            shape=tf.TensorShape(variable.shape), shared_name=variable.name,
        )
    return name
