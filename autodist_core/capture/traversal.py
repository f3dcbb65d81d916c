"""Walk over the operations of a graph, along the tensors that they read.

In: operations or tensors of a TensorFlow graph. Out: the operations that are reached from them. For `z = x * y`::

    sources(z)                    x, y
    readers(x)                    z
    reached_from([z], sources)    x, y, z
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from autodist_core.seams.table import FUNC_GRAPH
from autodist_core.step.index import Touch, accesses
from autodist_core.step.reaching import reached


def sources(operation: Any) -> Iterable[Any]:
    """Return the operations that an operation reads.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     x = tf.constant(1.0, name="x")
    ...     y = tf.square(x, name="y")
    >>> [operation.name for operation in sources(y.op)]
    ['x']
    """
    return (tensor.op for tensor in operation.inputs)


def readers(operation: Any) -> Iterable[Any]:
    """Return the operations that read an operation.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     x = tf.constant(1.0, name="x")
    ...     y = tf.square(x, name="y")
    >>> [operation.name for operation in readers(x.op)]
    ['y']
    """
    return (reader for output in operation.outputs for reader in output.consumers())


def reached_from(
    start: Iterable[Any], following: Callable[[Any], Iterable[Any]], stop: Callable[[Any], bool] = lambda _: False
) -> dict[str, Any]:
    """Return the operations of `start`, and all operations that `following` leads to from them, by name.

    An operation for which `stop` holds is left out, and nothing is followed from it.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     z = tf.square(tf.negative(tf.constant(1.0, name="x"), name="y"), name="z")
    >>> sorted(reached_from([z.op], sources))
    ['x', 'y', 'z']
    >>> sorted(reached_from([z.op], sources, stop=lambda operation: operation.name == "y"))
    ['z']
    """
    found = reached(start, lambda operation: () if stop(operation) else following(operation))
    return {operation.name: operation for operation in found if not stop(operation)}


def behind(tensor: Any, passing: Collection[str] = ("Identity",)) -> Any:
    """Return the tensor that operations of these types hand on as this one.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     behind(tf.identity(tf.identity(tf.constant(1.0, name="x")))).name
    'x:0'
    """
    while tensor.op.type in passing:
        tensor = tensor.op.inputs[0]
    return tensor


def inputs_first(graph: Any) -> list[Any]:
    """The operations of a graph, each behind those that it reads.

    TensorFlow lists them as they were created. A loop that is differentiated gets inputs that were created later.

    >>> import tensorflow as tf
    >>> @tf.function
    ... def slope(x):
    ...     power = tf.while_loop(lambda n, _: n < 2, lambda n, y: (n + 1, y * x), [0, x])[1]
    ...     return tf.gradients(power, x)
    >>> graph = slope.get_concrete_function(tf.TensorSpec((), tf.float32)).graph
    >>> def too_early(listed):
    ...     at = {each.name: place for place, each in enumerate(listed)}
    ...     return {each.type for each in listed for read in sources(each) if at[read.name] > at[each.name]}
    >>> too_early(graph.get_operations()), too_early(inputs_first(graph))
    ({'StatelessWhile'}, set())
    """
    found: dict[str, Any] = {}
    for operation in graph.get_operations():
        waiting = [operation]
        while waiting:
            missing = [each for each in sources(waiting[-1]) if each.name not in found]
            if missing:
                waiting += missing
            else:
                found.setdefault(waiting[-1].name, waiting.pop())
    return list(found.values())


def computed_from(tensors: Iterable[Any]) -> frozenset[str]:
    """Return the names of the operations that make these tensors, and of all operations that compute with them.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     x = tf.constant(1.0, name="x")
    ...     y = tf.square(x, name="y")
    >>> sorted(computed_from([x])), sorted(computed_from([y]))
    (['x', 'y'], ['y'])
    """
    return frozenset(reached_from((tensor.op for tensor in tensors), readers))


def touches_of(operations: Iterable[Any], handles: Mapping[str, str]) -> dict[str, tuple[Touch, ...]]:
    """Return the accesses to variables by operations; `handles` has the variables by the names of their placeholders.

    >>> import tensorflow as tf
    >>> rate = tf.Variable(0.1)
    >>> graph = tf.function(lambda: rate.assign_add(0.1)).get_concrete_function().graph
    >>> found = touches_of(graph.get_operations(), {graph.captures[0][1].op.name: "rate"})
    >>> found["AssignAddVariableOp"]
    (Touch(variable='rate', writes=True),)
    """
    return {
        operation.name: accesses(operation.node_def, handles.get) for operation in operations
        if any(tensor.op.name in handles for tensor in operation.inputs)
    }


def copied(operation: Any, inputs: Sequence[Any], label: str) -> Any:
    """Add a copy of an operation with other inputs to its graph. The label is the last part of its name.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     x, y = tf.constant(1.0), tf.constant(2.0)
    ...     copied(tf.negative(x, name="negative").op, [y], "again").name
    'negative/again'
    """
    return operation.graph.create_op(
        operation.type, inputs, [tensor.dtype for tensor in operation.outputs], name=f"{operation.name}/{label}",
        attrs=dict(operation.node_def.attr), op_def=operation.op_def,
    )


def function_graphs(graph: Any) -> Iterator[Any]:
    """Yield a function's graph and those around it, from the inside out. The graph of a process is no function's.

    >>> import tensorflow as tf
    >>> @tf.function
    ... def outer():
    ...     inner = tf.function(lambda: print(len(list(function_graphs(tf.compat.v1.get_default_graph())))))
    ...     inner()
    >>> outer()
    2
    >>> list(function_graphs(tf.Graph()))
    []
    """
    while isinstance(graph, FUNC_GRAPH.get()):
        yield graph
        graph = graph.outer_graph
