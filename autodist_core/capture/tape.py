"""Find the operations of a traced graph that a gradient tape made.

In: an operation. Out: whether a tape made it, or whether it computes with a value that a tape made. For a clipped
gradient of a loss::

    loss        not made by a tape
    gradient    made by a tape
    clipped     not made by a tape, but computed from a value that a tape made

TensorFlow stores with each operation the stack of calls that created it. An operation is a tape's if a function of
TensorFlow that computes gradients is on that stack. Name scopes do not tell it: the gradients of a `tf.function`, of a
`tf.custom_gradient` and of a recomputation have no scope of their own.
"""

import itertools
import os
from typing import Any

from autodist_core.capture.traced import Traced
from autodist_core.capture.traversal import sources
from autodist_core.seams import table as seams
from autodist_core.step.draws import Draws, may_draw
from autodist_core.step.op_types import FUNCTIONS

# The functions of TensorFlow that compute gradients, and their files.
_COMPUTING_GRADIENTS = {
    seam.name: f"{seam.owner.rpartition('.')[2]}.py" for seam in (seams.GRADIENT_TAPE, seams.GRADIENTS_HELPER)
}
_CUSTOM = f"{seams.CUSTOM_GRADIENT.owner.rpartition('.')[2]}.py"


class Tape:
    """Says which operations a tape made, and which operations compute with the values of these.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     x = tf.constant(2.0, name="x")
    ...     with tf.GradientTape() as tape:
    ...         tape.watch(x)
    ...         y = tf.square(x)
    ...     gradient = tape.gradient(y, x)
    >>> Tape().made(gradient.op), Tape().made(y.op)
    (True, False)
    """

    def __init__(self) -> None:
        self._made: dict[Any, bool] = {}
        self._known: dict[Any, bool] = {}

    def made(self, operation: Any) -> bool:
        """Whether an operation was created while gradients were computed."""
        if operation not in self._made:
            # The argument of a nested graph is not a gradient, even if the graph was traced for a gradient.
            self._made[operation] = operation.type != "Placeholder" and any(
                os.path.basename(frame.filename) == _COMPUTING_GRADIENTS[frame.name]
                for frame in operation.traceback or () if frame.name in _COMPUTING_GRADIENTS
            )
        return self._made[operation]

    def is_custom(self, operation: Any) -> bool:
        """Whether the function of a custom gradient created an operation, or one in a graph that the operation runs."""
        files = itertools.dropwhile(
            lambda file: file not in _COMPUTING_GRADIENTS.values(),
            (os.path.basename(frame.filename) for frame in operation.traceback or ()),
        )
        return (self.made(operation) and _CUSTOM in files) or any(
            self.is_custom(inner) for graph in graphs_of(operation) for inner in graph.get_operations()
        )

    def reaches(self, operation: Any) -> bool:
        """Whether a tape made an operation, or a value that the operation computes with, also in a nested graph."""
        waiting = [operation]
        while waiting:
            current = waiting[-1]
            if current in self._known:
                waiting.pop()
            elif self.made(current) or self.runs_one(current):
                self._known[current] = True
            else:
                unknown = [source for source in sources(current) if source not in self._known]
                if unknown:
                    waiting.extend(unknown)
                else:
                    self._known[current] = any(self._known[source] for source in sources(current))
        return self._known[operation]

    def runs_one(self, operation: Any) -> bool:
        """Whether an operation runs a graph with operations that a tape made."""
        return any(self.reaches(inner) for graph in graphs_of(operation) for inner in graph.get_operations())


def draws(operation: Any) -> bool:
    """Whether an operation draws random numbers, or runs a graph that does.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     draws(tf.raw_ops.RandomStandardNormal(shape=[2], dtype=tf.float32).op), draws(tf.constant(1.0).op)
    (True, False)
    """
    if may_draw(operation.type):
        return True
    graphs = graphs_of(operation)
    if not graphs and _names_of_graphs(operation):
        return bool(Draws(operation.graph.as_graph_def().library.function).of(operation.node_def))
    return any(draws(inner) for graph in graphs for inner in graph.get_operations())


def graphs_of(operation: Any) -> list[Any]:
    """Return the graphs that an operation runs, as they were traced; none if TensorFlow has a definition only.

    TensorFlow's CTC loss has such loops.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     called = tf.function(tf.square)(tf.constant(2.0))
    ...     [[inner.type for inner in graph.get_operations()] for graph in graphs_of(called.op)]
    [['Placeholder', 'Square', 'Identity']]
    """
    names = _names_of_graphs(operation)
    if any(isinstance(operation.graph._get_function(name), seams.LEGACY_FUNCTION.get()) for name in names):
        return []
    return [graph_named(operation.graph, name) for name in names]


def _names_of_graphs(operation: Any) -> list[str]:
    found = [operation.get_attr(attribute) for attribute in FUNCTIONS.get(operation.type, ())]
    return [function.name for each in found for function in (each if isinstance(each, list) else [each])]


def graph_named(graph: Any, name: str) -> Any:
    """Return the graph of a function that a graph calls, with the call stacks of its operations.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default() as graph:
    ...     called = tf.function(tf.square)(tf.constant(2.0))
    >>> [inner.type for inner in graph_named(graph, called.op.get_attr("f").name).get_operations()]
    ['Placeholder', 'Square', 'Identity']
    """
    function = graph._get_function(name)
    if function is None:
        raise seams.GRAPH_IS_FOUND.error(f"{name!r} is not found")
    return function.graph


def require_recognised(traced: Traced, tape: Tape) -> None:
    """Raise a `SeamError` if a tape differentiated a weighted loss, and no operation is recognised as the tape's.

    The operation that weights the loss is created while the tape computes gradients.

    >>> import tensorflow as tf
    >>> from autodist_core.errors import SeamError
    >>> with tf.Graph().as_default() as graph:
    ...     weighted = tf.constant(1.0, name="weighted")
    >>> try:
    ...     require_recognised(Traced(graph, [], [], [], None, None, weighting=[weighted]), Tape())
    ... except SeamError as error:
    ...     print(str(error).partition("(")[2].partition(")")[0])
    'weighted' was created while gradients were computed, and does not say so
    """
    unseen = [tensor.op.name for tensor in traced.weighting if not tape.made(tensor.op)]
    if unseen:
        raise seams.TAPE_IS_SEEN.error(f"{unseen[0]!r} was created while gradients were computed, and does not say so")
    if traced.weighting and traced.gradients and not any(tape.reaches(each.values.op) for each in traced.gradients):
        raise seams.TAPE_IS_SEEN.error(
            "the loss was differentiated, and none of the gradients that an optimizer gets comes from that"
        )
