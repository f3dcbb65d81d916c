"""Find out which losses of a function are sums over the examples, and which are means.

In: for each loss, the seed of its differentiation and its state (see `autodist_core.capture.batch_axis`). Out: the
seeds whose gradients are added up over the replicas. All other gradients count by the replica's share of the
batch::

    tf.reduce_mean(losses)                 a mean
    tf.reduce_sum(losses)                  a sum
    tf.reduce_sum(losses) * (1 / 64)       a sum: the number is a constant
    losses                                 a sum: a tape adds the entries up
    penalty / tf.cast(tf.shape(x)[0], ...)  neither: on one device it is divided by the size of the whole batch

Where a function has losses of several kinds, such as a sum and a penalty of the weights, all gradients are added up,
and each seed counts by a power of the share: 0 for a sum, 1 for a mean and for what is alike on all replicas, 2 for
that divided by the batch size. A result with terms of several kinds is added up over the replicas likewise.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

import tensorflow as tf

from autodist_core.capture.batch_axis import NO_CLAIM, SAME, Alike, Linear, Mixed, Reduced, Rows, Size, State, Sum
from autodist_core.capture.gradients.recording import OfExamples
from autodist_core.capture.gradients.terms import Term, sum_of
from autodist_core.capture.tape import graphs_of
from autodist_core.capture.traced import Counted


def weighed(
    targets: Iterable[tuple[Any, State]], of_examples: Iterable[OfExamples], state_of: Callable[[Any], State],
    always: bool = False,
) -> tuple[list[Any], dict[str, Counted]]:
    """The seeds whose gradients are added up, and how those among them count, by operations' names.

    All gradients count by the share if there are none. The seeds of sums and means over examples that are
    differentiated with respect to these (`of_examples`) count by a power of the share in any case. `always` says that
    the seeds must count by the share: gradients are added up where they are computed. The seeds must also count so
    behind a custom gradient, which need not be linear in what it gets: it may clip.

    >>> with tf.Graph().as_default():
    ...     of_sum, of_penalty = tf.ones([], name="of_sum"), tf.ones([], name="of_penalty")
    >>> seeds, counted = weighed([(of_sum, Sum(1)), (of_penalty, SAME)], [], lambda tensor: SAME)
    >>> [seed.op.name for seed in seeds], {name: each.power for name, each in counted.items()}
    (['of_sum', 'of_penalty'], {'of_penalty': 1})
    """
    found = list(targets)
    counted = _counted(_means_of_examples(of_examples, state_of))
    by_share = not always and not counted and all(_power(state) == 1 for _, state in found)
    if by_share and not any(_have_custom_gradient(_before(seed)) for seed, _ in found):
        return [], {}
    return [seed for seed, _ in found], {**counted, **_counted(found)}


def _before(seed: Any) -> Iterator[Any]:
    return takewhile(lambda each: each.name != seed.op.name, seed.graph.get_operations())


def _have_custom_gradient(operations: Iterable[Any]) -> bool:
    return any(
        (each.type == "IdentityN" and "_gradient_op_type" in each.node_def.attr)
        or any(_have_custom_gradient(graph.get_operations()) for graph in graphs_of(each)) for each in operations
    )


def seeded(target: State, seed: State) -> State:
    """The state of a loss whose differentiation begins with a tensor: of their product, added up.

    >>> losses, mean = Rows(), Sum(0)
    >>> seeded(losses, SAME).degree, seeded(mean, SAME).degree
    (1, 0)
    """
    state = times(target, seed)
    return Sum(state.degree + 1, state.origin) if isinstance(state, Rows) else state


def times(state: State, by: State, power: int = 1) -> State:
    """The state of a tensor that is multiplied by another one, or divided by it (power -1).

    >>> times(SAME, Size(), -1).degree
    -1
    """
    if by.couples:
        return Mixed(by.origin)
    if not isinstance(by, (Alike, Rows, Size)):
        return NO_CLAIM
    degree = power * by.degree
    if isinstance(state, (Rows, Linear)):
        return replace(state, degree=state.degree + degree)
    if state == SAME and degree:
        return Size(degree)
    return state if not degree or isinstance(state, Reduced) else NO_CLAIM


def _means_of_examples(noted: Iterable[OfExamples], state_of: Callable[[Any], State]) -> Iterator[tuple[Any, State]]:
    """The seeds of sums and means over the examples that are differentiated with respect to the examples.

    One device divides a mean by the whole batch there, and a replica by its slice.
    """
    for call in noted:
        of_rows = all(isinstance(state_of(each), Rows) for each in call.sources)
        for target, seed in call.targets if of_rows else ():
            state = seeded(state_of(target), state_of(seed))
            if isinstance(state_of(target), (Rows, Linear)) and isinstance(state, Linear):
                yield seed, state


def of_gradients_by(noted: Iterable[OfExamples]) -> dict[int, Callable[[Callable[[Any], State]], State]]:
    """How the states of gradients with respect to tensors follow from the states of others, by the gradients' `id`s.

    If `weighed` lets the gradients count as on one device, each example has its own part of such a gradient.

    >>> noted = OfExamples((("gradient", "x"),), (("loss", "seed"),), ("x",))
    >>> states = {"loss": Sum(0), "seed": SAME, "x": Rows()}
    >>> (of_gradient,) = of_gradients_by([noted]).values()
    >>> of_gradient(states.get).axes
    (0,)
    """
    return {id(each[0]): partial(_of_gradient_by, call, *each) for call in noted for each in call.gradients}


def _of_gradient_by(noted: OfExamples, gradient: Any, by: Any, state_of: Callable[[Any], State]) -> State:
    targets = [(state_of(target), state_of(seed)) for target, seed in noted.targets]
    known = all(
        target == SAME or (isinstance(target, (Rows, Linear)) and isinstance(seeded(target, seed), Linear))
        for target, seed in targets
    )
    if not known:
        return NO_CLAIM
    source, sources = state_of(by), [state_of(each) for each in noted.sources]
    if isinstance(source, Rows) and all(isinstance(state, Rows) for state in sources):
        return replace(source, degree=-source.degree, stride=0)
    if any(state != SAME for state in sources):
        return NO_CLAIM
    # What is alike, such as a weight, has one gradient for all examples: a mean over them if the loss is one.
    degrees = {seeded(target, seed).degree for target, seed in targets if target != SAME}
    if len(degrees) > 1 or (degrees and len(targets) > len(degrees) and degrees != {0}):
        return Mixed(gradient.op)
    return Sum(degrees.pop(), gradient.op) if degrees else SAME


def sums_of_two_kinds(
    outputs: Sequence[Any], terms: Sequence[Sequence[Term]], state_of: Callable[[Any], State],
    made_of_gradients: Collection[str],
) -> tuple[dict[int, Any], dict[str, Counted]]:
    """Make new outputs for those with terms of several kinds, by index; and how the terms count.

    >>> from autodist_core.capture.gradients.terms import terms_of
    >>> with tf.Graph().as_default():
    ...     loss = tf.identity(tf.constant(6.0, name="total") + tf.constant(1.0, name="penalty"))
    ...     states = {"total": Sum(1), "penalty": SAME}
    ...     terms = [terms_of(loss.op.inputs[0])]
    ...     made, counted = sums_of_two_kinds([loss], terms, lambda tensor: states[tensor.op.name], ())
    >>> list(made), [(name, each.power) for name, each in counted.items()]
    ([0], [('term_1', 1)])
    """
    made: dict[int, Any] = {}
    counted: dict[str, Counted] = {}
    for index, (output, own) in enumerate(zip(outputs, terms, strict=True)):
        found = [state_of_term(term, state_of) for term in own]
        powers = {_power(state) for state in found}
        known = all(isinstance(state, (Alike, Linear)) for state in found)
        number = output.dtype.is_floating or output.dtype.is_complex
        if number and isinstance(found[0], Rows) and found[0].degree and output.op.name not in made_of_gradients:
            # Rows that are multiplied by the batch size, or divided by it.
            with output.graph.as_default():
                made[index] = tf.identity(output)
            counted[made[index].op.name] = Counted(0, output.dtype.base_dtype, -found[0].degree)
            continue
        if not known or not number or powers in ({0}, {1}) or output.op.name in made_of_gradients:
            continue
        with output.graph.as_default():
            parts = [tf.identity(term.tensor, name="term") for term in own]
            made[index] = tf.identity(sum_of(own, parts, output.dtype))
        counted |= _counted(zip(parts, found, strict=True))
    return made, counted


def state_of_term(term: Term, state_of: Callable[[Any], State]) -> State:
    """The state of a term of a number, from its own state and those of the numbers by which it is multiplied.

    >>> with tf.Graph().as_default():
    ...     state_of_term(Term(tf.constant(1.0)), lambda tensor: Sum(1)).degree
    1
    """
    state = state_of(term.tensor)
    for by, power in term.numbers:
        state = times(state, state_of(by), power)
    return state


def _counted(found: Iterable[tuple[Any, State]]) -> dict[str, Counted]:
    powers = [(tensor, _power(state)) for tensor, state in found]
    return {tensor.op.name: Counted(0, tensor.dtype.base_dtype, power) for tensor, power in powers if power}


def _power(state: State) -> int:
    """The power of the share by which something counts, so that the replicas' sum is one device's."""
    return 1 - state.degree if isinstance(state, Linear) else 1
