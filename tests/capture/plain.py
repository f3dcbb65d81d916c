"""Steps without Keras: a plain TensorFlow function, and the marks that a front would have put on its gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.capture import Exchanged, Marked, Source, Traced
from autodist_core.step.graph_item import Variable

RATE = 0.1
SPECS = (tf.TensorSpec((None, 3), tf.float64, "x"),)


def spec_of(name: str, variable: tf.Variable, kind: str = "model", aggregation: str = "none") -> Variable:
    """A variable as a front describes it before the trace says whether it is trained."""
    return Variable(
        name, tuple(variable.shape), variable.dtype.name, trainable=False, kind=kind, aggregation=aggregation
    )


class Tracer:
    """What a step calls to apply gradients: marks them, and remembers which operations are the update."""

    def __init__(self) -> None:
        self.marked: list[Marked] = []
        self.updates: dict[str, int] = {}
        self._applied = 0
        self.sums: list[Any] = []
        self.weighting: list[Any] = []

    def sum_over_replicas(self, value: Any) -> Any:
        """A value that counts summed over the replicas."""
        self.sums.append(tf.identity(value))
        return self.sums[-1]

    def apply(self, gradients: Mapping[str, Any], update: Callable[[dict], None]) -> None:
        """One `apply`: `update` gets the marked gradients by name."""
        occurrence, handed = self._applied, {}
        for name, gradient in gradients.items():
            if isinstance(gradient, tf.IndexedSlices):
                values, indices = tf.identity(gradient.values), tf.identity(gradient.indices)
                handed[name] = tf.IndexedSlices(values, indices, gradient.dense_shape)
            else:
                values, indices = tf.identity(gradient), None
                handed[name] = values
            self.marked.append(Marked(name, occurrence, values, indices))
        graph = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        update(handed)
        self.updates |= {operation.name: occurrence for operation in graph.get_operations()[first:]}
        self._applied += 1


def trace(
    step: Callable[..., Sequence[Any]],
    variables: Mapping[str, tf.Variable],
    specs: Sequence[tf.TensorSpec] = SPECS,
    described: Mapping[str, Variable] | None = None,
    concat_outputs: bool = False,
) -> Traced:
    """Trace `step(tracer, *inputs)`, which returns its outputs."""
    tracer, outputs, counts = Tracer(), [], []

    def function(*arguments: Any) -> Any:
        *inputs, examples, total = arguments
        counts[:] = examples, total
        outputs[:] = step(tracer, *inputs)
        return list(outputs)

    feeds = [tf.TensorSpec((), tf.float64, name) for name in ("examples", "total")]
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs, *feeds)
    described = described or {}
    return Traced(
        graph=concrete.graph,
        sources=[Source(described.get(name) or spec_of(name, v), v.handle) for name, v in variables.items()],
        inputs=concrete.inputs[: len(specs)], outputs=list(outputs), examples=counts[0], total=counts[1],
        gradients=tracer.marked, updates=tracer.updates, exchanged=Exchanged(tracer.sums), weighting=tracer.weighting,
        concat_outputs=concat_outputs,
    )


def dense_variables(**dtypes: Any) -> dict[str, tf.Variable]:
    """A linear model's variables; `dtypes` adds scalars of other types."""
    random = np.random.default_rng(4)
    variables = {"w": tf.Variable(random.normal(size=(3, 2)), name="w"), "b": tf.Variable(tf.zeros(2, tf.float64))}
    return variables | {name: tf.Variable(tf.constant(1, dtype)) for name, dtype in dtypes.items()}


def loss_of(variables: Mapping[str, tf.Variable], x: Any) -> Any:
    """The mean of squares of a linear model, times every scalar there is."""
    y = x @ variables["w"] + variables["b"]
    for name, variable in variables.items():
        if name not in ("w", "b"):
            y *= tf.cast(variable, y.dtype)
    return tf.reduce_mean(tf.square(y - 1.0))


def gradients_of(variables: Mapping[str, tf.Variable], x: Any, loss: Callable = loss_of) -> tuple[Any, dict]:
    """The loss, and the gradient of each variable by name."""
    with tf.GradientTape() as tape:
        value = loss(variables, x)
    return value, dict(zip(variables, tape.gradient(value, list(variables.values())), strict=True))


def descend(variables: Mapping[str, tf.Variable]) -> Callable[[dict], None]:
    """Gradient descent, with rows where the gradient has rows."""

    def update(gradients: dict) -> None:
        for name, gradient in gradients.items():
            rate = tf.constant(RATE, variables[name].dtype)
            if isinstance(gradient, tf.IndexedSlices):
                tf.raw_ops.ResourceScatterSub(
                    resource=variables[name].handle, indices=gradient.indices, updates=rate * gradient.values
                )
            else:
                variables[name].assign_sub(rate * gradient)

    return update


def dense_step(
    variables: Mapping[str, tf.Variable], times: int = 1, loss_of: Callable = loss_of
) -> Callable[..., list[Any]]:
    """A step that computes gradients of a loss and applies them, so many times."""

    def step(tracer: Tracer, x: Any) -> list[Any]:
        losses = []
        for _ in range(times):
            loss, gradients = gradients_of(variables, x, loss_of)
            tracer.apply(gradients, descend(variables))
            losses.append(loss)
        return losses

    return step


def table_variables() -> dict[str, tf.Variable]:
    """A table of rows, and what the rows are multiplied with."""
    random = np.random.default_rng(5)
    return {"table": tf.Variable(random.normal(size=(6, 2))), "scale": tf.Variable(random.normal(size=(2,)))}


TABLE_SPECS = (tf.TensorSpec((None, 2), tf.int32, "ids"),)


def table_step(variables: Mapping[str, tf.Variable]) -> Callable[..., list[Any]]:
    """A step that looks rows up and trains them."""

    def loss_of_rows(variables: Mapping[str, tf.Variable], ids: Any) -> Any:
        rows = tf.gather(variables["table"], ids)
        return tf.reduce_mean(tf.square(rows * variables["scale"] - 1.0))

    return dense_step(variables, loss_of=loss_of_rows)
