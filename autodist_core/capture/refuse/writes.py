"""Refuse a step that writes trained variables, or the optimizer's state, outside an optimizer's `apply`.

In: a traced step, and its graph with the nodes of the update marked. Out: a `CaptureError` for each such variable, and
for each second gradient of a variable in one `apply`::

    this training step cannot be distributed: trainable variable 'w' is written outside an optimizer, with ...

Each replica would write a value of its own. What all replicas write alike is an update by now (`forward_updates.py`).
"""

from collections import Counter
from collections.abc import Iterator

from autodist_core.capture.traced import Traced
from autodist_core.errors import REFUSED, CaptureError
from autodist_core.step.editor import Editor
from autodist_core.step.index import accesses
from autodist_core.step.naming import UPDATE


def written_by_compute(traced: Traced, graph: Editor) -> set[str]:
    """Return the variables that nodes outside the updates write.

    >>> from autodist_core.capture.example import example_traced
    >>> traced = example_traced()
    >>> sorted(written_by_compute(traced, Editor.of(traced.graph.as_graph_def())))  # no node is marked yet
    ['iterations', 'kernel', 'total', 'velocity']
    """
    return {
        touch.variable for node in graph if UPDATE not in node.attr
        for touch in accesses(node, traced.handles.get) if touch.writes
    }


def written_outside(traced: Traced, graph: Editor) -> Iterator[CaptureError]:
    """Yield an error for each variable that compute may not write, and for each that gets two gradients in one apply.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.traced import Source
    >>> from autodist_core.step.graph_item import Variable
    >>> rate = tf.Variable(0.1)
    >>> step = tf.function(lambda count: rate.assign(0.5)).get_concrete_function(tf.TensorSpec((), tf.float64))
    >>> source = Source(Variable("rate", (), "float32", trainable=False, kind="optimizer"), rate.handle)
    >>> traced = Traced(step.graph, (source,), (), (), step.inputs[0], step.inputs[0])
    >>> for error in written_outside(traced, Editor.of(step.graph.as_graph_def())):
    ...     print(error)
    this training step cannot be distributed: optimizer variable 'rate' is written outside optimizer.apply; ...
    """
    written = written_by_compute(traced, graph)
    trained = {gradient.variable for gradient in traced.gradients}
    optimizers = {source.variable.name for source in traced.sources if source.variable.kind == "optimizer"}
    for name in sorted(written & trained):
        yield CaptureError(
            f"{REFUSED}trainable variable {name!r} is written outside an optimizer, with a value that needs the batch "
            "or random numbers; let optimizer.apply do it, or make it non-trainable."
        )
    for name in sorted(written & optimizers):
        yield CaptureError(
            f"{REFUSED}optimizer variable {name!r} is written outside optimizer.apply; use a learning rate schedule, "
            "or change it between steps, in a callback."
        )
    for (name, _), count in Counter((each.variable, each.occurrence) for each in traced.gradients).items():
        if count > 1:
            yield CaptureError(
                f"{REFUSED}variable {name!r} gets two gradients in one apply. Differentiate the sum of the losses, or "
                "add the gradients up before apply."
            )
