"""A small captured step, for the examples of docstrings.

In: nothing, or what is to be other than in this step. Out: a `GraphItem`, or the `Traced` that it is made of.

It trains a kernel by momentum and counts its updates, adds the loss of each batch to a metric's total, and returns the
loss and the norm of the gradient:

>>> item = example_step()
>>> print(*item.variables, sep="; ")
kernel : f32[3,1]; velocity : f32[3,1]; iterations : i64[]; total : f32[]
>>> [gradient.variable for gradient in item.gradients]
['kernel']
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from autodist_core.capture import capture
from autodist_core.capture.traced import Marked, Source, Traced
from autodist_core.step.graph_item import GraphItem, Variable


def example_step() -> GraphItem:
    """Capture the step, whose batches have three features. The module's docstring shows its variables.

    >>> example_step().inputs[0].name
    'x'
    """
    return capture(example_traced())


def example_traced(
    changed: Callable[[Any], Any] = lambda gradient: gradient, shape: tuple[int, int] = (3, 1),
    loss_of: Callable[..., Any] = lambda x, kernel: tf.reduce_mean((x @ kernel) ** 2), **more: tf.Variable,
) -> Traced:  # fmt: skip
    """Trace the step with a kernel of this shape.

    `changed` computes what `apply` gets from the gradient. `loss_of` computes the loss from a batch and the kernel.
    `more` has variables of the model that these functions use.

    >>> traced = example_traced(changed=lambda gradient: 0.5 * gradient)
    >>> traced.gradients[0].values.op.inputs[0].op.type
    'Mul'
    """
    shapes = {"kernel": shape, "velocity": shape, "iterations": (), "total": ()}
    kinds = {"kernel": "model", "velocity": "optimizer", "iterations": "optimizer", "total": "metric"}
    variables = {
        name: tf.Variable(tf.ones(shape, "int64" if name == "iterations" else "float32"), name=name)
        for name, shape in shapes.items()
    } | more
    found: dict[str, Any] = {}

    def step(x: Any, examples: Any, total: Any) -> Sequence[Any]:
        with tf.GradientTape() as tape:
            loss = loss_of(x, variables["kernel"])
        variables["total"].assign_add(loss * tf.cast(examples / total, tf.float32))
        marker = tf.identity(changed(tape.gradient(loss, variables["kernel"])), name="marker")
        graph = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        variables["velocity"].assign(0.9 * variables["velocity"] + marker)
        variables["kernel"].assign_sub(0.1 * variables["velocity"])
        variables["iterations"].assign_add(1)
        updates = {operation.name: 0 for operation in graph.get_operations()[first:]}
        outputs = [tf.identity(loss, name="loss"), tf.norm(marker, 1, name="norm")]
        found.update(gradients=[Marked("kernel", 0, marker)], updates=updates, outputs=outputs)
        return outputs

    counts = [tf.TensorSpec((), tf.float64, name) for name in ("examples", "total")]
    batch = tf.TensorSpec((None, shape[0]), name="x")
    function = tf.function(step, autograph=False).get_concrete_function(batch, *counts)
    x, examples, total = function.inputs[:3]
    sources = [
        Source(
            Variable(name, tuple(one.shape), one.dtype.name, trainable=name == "kernel",
                     kind=kinds.get(name, "model"), aggregation="sum" if name == "total" else "none"),
            one.handle,
        )
        for name, one in variables.items()
    ]  # fmt: skip
    return Traced(function.graph, sources, [x], examples=examples, total=total, **found)
