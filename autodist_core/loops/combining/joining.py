"""How the replicas' results of a marked function become the results for the whole batch.

In: the outputs of a trace, and their states (see `autodist_core.capture.batch_axis`). Out: a `Joined` for each output.

===================================================  =========================================================
output                                               for the whole batch
===================================================  =========================================================
one row for each example, along one axis             ``rows``: the replicas' rows, one behind the other
a sum over the examples                              ``sum``
a mean over the examples                             ``mean``, weighted by the replicas' numbers of examples
a maximum or minimum over the examples               ``max`` or ``min``
a sum, times a power of the number of examples       ``sum``, each counted by a power of the replica's share
equal on all replicas                                ``same``
made of gradients, or of updated variables           ``same``: it is made of the whole batch's gradients
a float that is one number, and none of these        ``mean``; the plan says that it is not exact
===================================================  =========================================================

Anything else is refused.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from autodist_core.capture.batch_axis import Linear, Nonlinear, Rows, State, how_joined
from autodist_core.capture.traced import name_of
from autodist_core.errors import CaptureError
from autodist_core.step.graph_item import Joined

_REMEDY = (
    "Return a value for each example (the examples along one axis), or a sum, a mean, a maximum or a minimum "
    "over the examples; a float that is one number counts as a mean."
)


def joins(
    outputs: Sequence[Any], state_of: Callable[[Any], State], made_for_all: Collection[str], counted: Collection[int]
) -> tuple[Joined, ...]:
    """How each output is joined; a CaptureError for an output that no word fits.

    `made_for_all` names the operations whose values are made of the whole batch's. `counted` has the positions of the
    outputs that count by a power of the share: rows, and sums.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.batch_axis import SAME
    >>> with tf.Graph().as_default():
    ...     outputs = [tf.identity(1.0) for _ in range(3)]
    >>> [each.how for each in joins(outputs, lambda output: SAME, (), [1])]
    ['same', 'sum', 'same']
    """
    found = []
    for index, output in enumerate(outputs):
        state = state_of(output)
        if output.op.name in made_for_all:
            how = "same"
        elif index not in counted:
            how = _join(index, output, state)
        else:
            how = _join(index, output, replace(state, degree=0)) if isinstance(state, Rows) else "sum"
        found.append(_joined(output, how, state))
    return tuple(found)


def given_to_all(tensors: Sequence[Any], state_of: Callable[[Any], State]) -> tuple[Joined, ...]:
    """How the replicas' values become one that an operation takes for the whole batch.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.batch_axis import Sum
    >>> with tf.Graph().as_default():
    ...     total = tf.identity(1.0, name="total")
    >>> given_to_all([total], lambda tensor: Sum(1))
    (Joined(tensor='total', how='sum', axis=0),)
    """
    joined = []
    for tensor in tensors:
        state = state_of(tensor)
        found = word(tensor, state)
        if found is None or (found == "mean" and isinstance(state, Nonlinear)):
            raise CaptureError(
                f"a result of the function is computed from {_described(tensor.op, tensor, state)}, and from the whole "
                "batch's gradients or from a variable that the function wrote before from the batch: it is not known "
                "how the replicas' values of the first become one. Return both, and compute the result after the call; "
                "or read the variable before the function writes it."
            )
        joined.append(_joined(tensor, found, state))
    return tuple(joined)


def _joined(tensor: Any, how: str, state: State) -> Joined:
    return Joined(name_of(tensor), how, state.axis if how == "rows" and isinstance(state, Rows) else 0)


def word(tensor: Any, state: State) -> str | None:
    """The word for one tensor; None if no word fits.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.batch_axis import SAME, Mixed, Sum
    >>> number = tf.constant(1.0)
    >>> word(number, Sum(1)), word(number, SAME), word(tf.constant([1, 2]), Mixed())
    ('sum', 'same', None)
    """
    if (how := how_joined(state)) is not None:
        return how
    if isinstance(state, Rows) and len(state.axes) == 1 and state.outer == 1 and not (state.degree or state.stride):
        return "rows"
    is_number = tensor.dtype.is_floating or tensor.dtype.is_complex
    is_mean = isinstance(state, Linear) and state.degree == 0
    return "mean" if is_number and (is_mean or tensor.shape.rank == 0) else None


def _join(index: int, output: Any, state: State) -> str:
    found = word(output, state)
    if found is not None:
        return found
    made = output.op.inputs[0].op if output.op.inputs else output.op
    raise CaptureError(
        f"result {index} of the function, {_described(made, output, state)}: it is not known how the replicas' values "
        f"of it become one. {_REMEDY}"
    )


def _described(made: Any, tensor: Any, state: State) -> str:
    where = f", with the examples along axis {state.axis}" if isinstance(state, Rows) else ""
    return f"a {tensor.dtype.name} of shape {tensor.shape} made by {made.name!r} ({made.type}){where}"
