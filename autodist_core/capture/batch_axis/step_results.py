"""Find out how the replicas' integers and truth values, and the results of `predict`, become the whole batch's.

In: a traced step, and the states of tensors. Out: a `Joined` for each tensor for which it is known::

    reduce_sum(lengths)                    sum     a sum over the examples
    reduce_max(lengths) + 1                max     the largest value over the examples
    tf.shape(x)[1]                         same    equal on all replicas
    reduce_sum(reduce_max(lengths, 0))     -       no combination of the replicas' values gives it

The results of `predict` are rows of any type, unless their states say otherwise::

    transpose(x)                           rows    along axis 1
    reduce_mean(x, 0)                      mean    one value for the whole batch

So are the rows from which a result of another step is computed together with a variable that the step has written.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from autodist_core.capture.batch_axis.given import last_writes
from autodist_core.capture.batch_axis.states.finding import UncombinedResult
from autodist_core.capture.batch_axis.states.reduced import Largest, Linear, Reduced, Smallest
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Alike, Distinct, Rows, Sizes, State
from autodist_core.capture.traced import Traced, name_of
from autodist_core.capture.traversal import reached_from, sources
from autodist_core.step.graph_item import Joined

_JOINS: Mapping[type[State], str] = {Alike: "same", Largest: "max", Smallest: "min"}
"""How the replicas' values become the whole batch's that are joined in the same way whatever their type is."""


def _to_be_joined(traced: Traced) -> list[Any]:
    """Return the integers and truth values whose values on the replicas are joined.

    These are results of the step, and values from which a result is computed together with the state of metrics. Of a
    step whose results are rows, they are all results but the parts of ragged and sparse ones.
    """
    if traced.concat_outputs:
        parts = {id(tensor) for tensor in traced.result_parts}
        return list({id(tensor): tensor for tensor in traced.outputs if id(tensor) not in parts}.values())
    needed, combined = _beside(traced, {handle for handle, each in traced.captured.items() if each.kind == "metric"})
    needed |= {id(tensor): tensor for tensor in traced.outputs}
    return [
        tensor for tensor in needed.values()
        if (tensor.dtype.is_integer or tensor.dtype.is_bool) and tensor.op.name not in combined
    ]


def _beside(traced: Traced, handles: Collection[str]) -> tuple[dict[int, Any], set[str]]:
    """Return the tensors from which a result is computed together with these variables, and what is computed so."""
    needed, behind, made = {}, reached_from((tensor.op for tensor in traced.outputs), sources), set(handles)
    for operation in traced.graph.get_operations() if handles else ():
        inputs = operation.inputs if operation.name in behind else ()
        if any(tensor.op.name in made for tensor in inputs):
            made.add(operation.name)
            needed.update({id(tensor): tensor for tensor in inputs})
    return needed, made


def _rows_beside_state(traced: Traced, state_of: Callable[[Any], State]) -> Iterator[Joined]:
    """Yield how rows are joined from which a result is computed once more, with the combined state of a variable."""
    written = last_writes(traced)
    handles = {handle for handle, each in traced.captured.items() if each.name in written and each.kind != "seed"}
    for tensor in _beside(traced, handles)[0].values():
        if isinstance(state := state_of(tensor), Rows) and len(state.axes) == 1:
            yield Joined(name_of(tensor), "rows", state.axis)


def joined(traced: Traced, state_of: Callable[[Any], State]) -> tuple[Joined, ...]:
    """Return how the replicas' values of tensors of a step are joined, for those tensors for which it is known.

    The module's docstring has examples. Results that are rows are so along the first axis where it is not known.

    >>> import tensorflow as tf
    >>> step = tf.function(lambda lengths: tf.reduce_max(lengths, name="longest"), autograph=False)
    >>> graph = step.get_concrete_function(tf.TensorSpec((None,), tf.int32)).graph
    >>> traced = Traced(graph, (), graph.inputs, graph.outputs, examples=None, total=None)
    >>> [each.how for each in joined(traced, lambda tensor: Largest())]
    ['max']
    """
    tensors = _to_be_joined(traced)
    if traced.concat_outputs:
        found = [joined_result(tensor, state_of(tensor)) for tensor in tensors]
        return tuple(how for how in found if how is not None)
    return tuple(
        Joined(name_of(tensor), how) for tensor in tensors for how in [how_joined(state_of(tensor))]
        if how is not None and (how != "sum" or tensor.dtype.is_integer)
    ) + tuple(_rows_beside_state(traced, state_of))


def how_joined(state: State) -> str | None:
    """Return how the replicas' values of a state are joined, whatever their type is; None if that depends on more.

    >>> how_joined(SAME), how_joined(Largest())
    ('same', 'max')
    """
    return "sum" if isinstance(state, Linear) and state.degree == 1 else _JOINS.get(type(state))


def joined_result(tensor: Any, state: State) -> Joined | None:
    """Return how the replicas' values of a result of `predict` are joined; None for rows along the first axis.

    A value of the whole batch for which nothing is right has the shape that it has on one device: `is_joined` tells.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.batch_axis.states.reduced import Sum
    >>> with tf.Graph().as_default():
    ...     x = tf.zeros((4, 2), name="x")
    >>> joined_result(x, Rows((1,))), joined_result(x, Sum(0)), joined_result(x, Rows())
    (Joined(tensor='x', how='rows', axis=1), Joined(tensor='x', how='mean', axis=0), None)
    """
    number = tensor.dtype.is_floating or tensor.dtype.is_complex
    if isinstance(state, Rows) and len(state.axes) == 1:
        return Joined(name_of(tensor), "rows", state.axis) if state.axis else None
    if isinstance(state, Sizes) and state.times is not None and tensor.shape.num_elements() == 1:
        return Joined(name_of(tensor), "sum")
    if (how := how_joined(state)) is not None:
        return Joined(name_of(tensor), how)
    if isinstance(state, (Reduced, Sizes)) or tensor.shape.rank == 0:
        return Joined(name_of(tensor), "mean" if number else "same")
    return None


def is_joined(tensor: Any, state: State) -> bool:
    """Whether the values of a result of `predict`, joined so, are one device's, as far as it is known.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.batch_axis.states.reduced import Mixed, Sum
    >>> with tf.Graph().as_default():
    ...     x = tf.zeros((4,))
    >>> is_joined(x, Sum(0)), is_joined(x, Mixed()), is_joined(x, Rows(stride=1))
    (True, False, False)
    """
    if isinstance(state, Rows):
        return len(state.axes) == 1 and not (state.stride or state.degree) and state.outer in (1, None)
    how = joined_result(tensor, state)
    if how is None:
        return not isinstance(state, Distinct)
    if how.how == "mean":
        return isinstance(state, Linear) and state.degree == 0
    return how.how != "same" or state == SAME


def uncombined(traced: Traced, states: Mapping[int, State]) -> Iterator[UncombinedResult]:
    """Return those results of `predict` whose joined values are not one device's, given states by tensor id.

    >>> list(uncombined(Traced(None, (), (), (), examples=None, total=None, concat_outputs=True), {}))
    []
    """
    parts = {id(tensor) for tensor in traced.result_parts}
    for index, tensor in enumerate(traced.outputs):
        state = states.get(id(tensor), NO_CLAIM)
        if id(tensor) not in parts and not is_joined(tensor, state):
            how = joined_result(tensor, state)
            by_itself = state == NO_CLAIM or (isinstance(state, Rows) and len(state.axes) > 1)
            yield UncombinedResult(index, state, how.how if how else "rows", tensor.op if by_itself else None)
