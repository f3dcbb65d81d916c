"""What is known before the walk over a step begins: the states of its placeholders.

In: a traced step. Out: a state for each placeholder, by the tensor's id. For a batch of images and a ragged tensor::

    images         rows along axis 0
    flat values    rows along axis 0: any number of them for each example
    row splits     ragged: which values are of which example
    kernel         a variable
"""

from collections.abc import Callable
from typing import Any

from autodist_core.capture.batch_axis.rules.ragged import FLAT_VALUES, SPLITS
from autodist_core.capture.batch_axis.states.reduced import Size
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Handle, Ragged, Rows, State
from autodist_core.capture.traced import Traced

Known = State | Callable[[Callable[[Any], State]], State]
"""The state of a tensor, or what makes it of the states of others, in place of what the rules say of it."""


def states_of_inputs(traced: Traced) -> dict[int, State]:
    """Return the states of a step's placeholders, by the ids of the tensors.

    >>> import tensorflow as tf
    >>> graph = tf.function(tf.sqrt).get_concrete_function(tf.TensorSpec((None, 3), tf.float32)).graph
    >>> found = states_of_inputs(Traced(graph, (), graph.inputs, graph.outputs, examples=None, total=None))
    >>> found[id(graph.inputs[0])].axes
    (0,)
    """
    found: dict[int, State] = {
        id(placeholder): SAME if variable is None else Handle(variable)
        for _, placeholder in traced.graph.captures for variable in [traced.captured.get(placeholder.op.name)]
    }
    found.update({id(each): SAME if each.shape.rank == 0 else Rows() for each in traced.inputs})
    found.update({id(each): Ragged() for each in traced.components.parts})
    found.update({id(each): SPLITS for each in traced.components.row_splits})
    found.update({id(each): FLAT_VALUES for each in traced.components.flat_values})
    found.update({id(each): SAME for each in traced.whole})
    found.update({id(traced.examples): Size(), id(traced.total): SAME, id(traced.replica): NO_CLAIM})
    return found


def known_states(traced: Traced) -> dict[int, Known]:
    """Return the states of what the whole batch gives: sums and rows of all replicas, totals, sizes of the longest.

    >>> import tensorflow as tf
    >>> graph = tf.function(lambda: tf.constant(1.0)).get_concrete_function().graph
    >>> known_states(Traced(graph, (), (), graph.outputs, None, None, totals=[graph.outputs[0].op])).keys() == {
    ...     id(graph.outputs[0])
    ... }
    True
    """
    found: dict[int, Known] = {id(each): SAME for group in traced.exchanged for each in group}
    found |= {id(each.outputs[0]): SAME for each in traced.longest if each.type == "Max"}
    return found | {id(each.outputs[0]): lambda _: SAME for each in traced.totals}


def last_writes(traced: Traced) -> dict[str, int]:
    """Return where each variable is written last outside of updates, as a position among the step's operations.

    >>> import tensorflow as tf
    >>> graph = tf.function(lambda: tf.constant(1.0)).get_concrete_function().graph
    >>> last_writes(Traced(graph, (), (), graph.outputs, None, None))
    {}
    """
    return {
        traced.captured[tensor.op.name].name: at for at, operation in enumerate(traced.graph.get_operations())
        if operation.name not in traced.updates and operation.type != "ReadVariableOp"
        for tensor in operation.inputs if tensor.op.name in traced.captured
    }
