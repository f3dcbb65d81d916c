"""Refuse a step that captures something of this process which replicas cannot have copies of.

In: a traced step, and its graph. Out: a `CaptureError` for each such capture::

    variable                      passes
    immutable lookup table        passes: each machine gets a table with equal content
    mutable table, queue, ...     is refused: the replicas would share it in an order that nobody decides
"""

from collections.abc import Iterator

import tensorflow as tf

from autodist_core.capture.traced import Traced
from autodist_core.errors import CaptureError
from autodist_core.step.editor import Editor

_MUTATING_TABLES = {"LookupTableInsertV2", "LookupTableImportV2", "LookupTableRemoveV2"}


def captured_resources(traced: Traced, graph: Editor) -> Iterator[CaptureError]:
    """Yield an error for each capture that is no tensor, no variable and no immutable lookup table.

    >>> queue = tf.queue.FIFOQueue(3, [tf.float64])
    >>> step = tf.function(lambda x: [queue.enqueue(x), x][1]).get_concrete_function(tf.TensorSpec((), tf.float64))
    >>> traced = Traced(step.graph, (), (), (), step.inputs[0], step.inputs[0])
    >>> for error in captured_resources(traced, Editor.of(step.graph.as_graph_def())):
    ...     print(error)
    the step captures ..., read by QueueEnqueueV2. Of resources, only variables and immutable lookup tables can ...
    """
    for value, placeholder in traced.graph.captures:
        name = placeholder.op.name
        if value.dtype == tf.variant:
            yield CaptureError(
                f"the step captures {value!r}, a {value.dtype.name} that lives in this process only. "
                "Pass data through fit's arguments instead of closing over it."
            )
        elif value.dtype == tf.resource and name not in traced.handles:
            readers = {node.op for node in graph if name in node.input}
            if "LookupTableFindV2" not in readers or readers & _MUTATING_TABLES:
                remedy = (
                    " Return the value, and write its summary after the call."
                    if any("Summary" in reader for reader in readers) else ""
                )
                yield CaptureError(
                    f"the step captures {value!r}, read by {', '.join(sorted(readers)) or 'a nested function'}. "
                    f"Of resources, only variables and immutable lookup tables can be distributed.{remedy}"
                )
