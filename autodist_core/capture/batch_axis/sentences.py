"""Findings of the static analysis in words. The notes of a model's plan and of a marked function's plan use them.

In: a finding, and the name of its place as the front knows it. Out: a sentence, or a part of one.

>>> mixing("in layer 'centred', Mean (centred/Mean)", "gives each example a value of the whole batch")
"in layer 'centred', Mean (centred/Mean) gives each example a value of the whole batch, and a replica has only its own"
"""

from typing import Any

from autodist_core.capture.batch_axis.states.finding import REMEDIES, UncombinedResult, UncombinedWrite
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, Rows
from autodist_core.capture.source_lines import source_line

_HOW = {
    "sum": "added up over the replicas", "max": "the largest of the replicas'", "min": "the smallest of the replicas'",
    "mean": "averaged over the replicas",
}


def named(operation: Any) -> str:
    """An operation's type and name; a number of examples has no operation that made it.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     named(tf.reduce_mean([1.0, 3.0], name="average").op)
    'Mean (average)'
    """
    return "the number of examples" if operation is None else f"{operation.type} ({operation.name})"


def at(operation: Any) -> str:
    """Where a program made an operation, for the end of a note; nothing if it is not known.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     at(tf.reduce_mean([1.0, 3.0]).op)
    ' (File "<doctest ...>", line 2, in <module>)'
    """
    place = "" if operation is None else source_line(operation).place
    return place and f" ({place})"


def mixing(operation: str, what: str) -> str:
    """The sentence on an operation that mixes the examples of a batch. The module's docstring has an example."""
    return f"{operation} {what}, and a replica has only its own"


def refused(where: str, what: str) -> tuple[str, str]:
    """What an operation does that cannot run on a part of a batch, and what to do instead.

    >>> refused("Reshape (flat)", "fixes how many examples a batch has")[0]
    'Reshape (flat) fixes how many examples a batch has'
    """
    return f"{where} {what}", REMEDIES[what]


def kept(subject: str, write: UncombinedWrite) -> str:
    """The sentence on a variable for which the replicas' values do not combine to one device's value.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.batch_axis.states.reduced import Mixed
    >>> from autodist_core.step.graph_item import Variable
    >>> with tf.Graph().as_default():
    ...     root = tf.sqrt(2.0, name="root").op
    >>> variable = Variable("root", (), "float32", kind="metric", aggregation="sum")
    >>> kept("the variable", UncombinedWrite(variable, Mixed(root), root, root))
    "the variable 'root' is added up over the replicas, and what is written to it is made by Sqrt (root)"
    """
    variable, origin = write.variable, write.state.origin
    if origin is not None and origin.type == "ReadVariableOp":
        origin = write.operation.inputs[1].op
    how = _HOW.get(variable.combined, "the first replica's")
    made = "the same on every replica" if origin is None else f"made by {named(origin)}"
    return f"{subject} {variable.name!r} is {how}, and what is written to it is {made}"


def joined_otherwise(subject: str, result: UncombinedResult) -> str:
    """The sentence on a result for which the replicas' results, joined as they are, are not one device's result.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.batch_axis.states.reduced import Mixed
    >>> with tf.Graph().as_default():
    ...     root = tf.sqrt(2.0, name="root").op
    >>> joined_otherwise("the result 'root'", UncombinedResult(0, Mixed(root)))
    "the result 'root' is the replicas' mean, and Sqrt (root) does not make a mean over the examples"
    """
    state, made = result.state, named(result.state.origin or result.origin)
    if state == NO_CLAIM:
        how = "the replicas' mean" if result.how == "mean" else "the first replica's"
        return f"{subject} is {how}, and what {made} makes of the examples is not known"
    if result.how == "mean":
        return f"{subject} is the replicas' mean, and {made} does not make a mean over the examples"
    if result.how == "same":
        return f"{subject} is the first replica's, and {made} makes another value of each replica's part of the batch"
    rows = f"{subject} has the replicas' rows, one behind the other, and"
    if state.stride:
        return f"{rows} {made} gives each example a value of its place in the batch, of which a replica has its part"
    if state.degree:
        return f"{rows} {made} gives each example a value that depends on how many examples the batch has"
    if not isinstance(state, Rows):
        return f"{rows} {made} takes each distinct entry of a replica's part of the batch once"
    if len(state.axes) > 1:
        return f"{rows} {made} has parts of one example in several rows"
    if state.subset:
        return f"{rows} one device puts all examples of one choice before those of another choice"
    return f"{rows} one device has the whole batch {state.outer} times, one behind the other"


def of_gradient(operation: str, remedy: str) -> str:
    """The sentence on an operation that computes with a gradient: gradients are not followed.

    >>> of_gradient("Sqrt (norm)", "verify compares with one device")
    "whether the gradient that Sqrt (norm) uses is one device's is not known: verify compares with one device"
    """
    return f"whether the gradient that {operation} uses is one device's is not known: {remedy}"


def undecided(operation: str) -> str:
    """The sentence on an operation that may mix examples or not.

    >>> undecided("Bincount (Bincount)")
    'it is not known whether Bincount (Bincount) mixes the examples of a batch'
    """
    return f"it is not known whether {operation} mixes the examples of a batch"
