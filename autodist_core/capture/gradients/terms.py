"""The terms of a number that is a sum of numbers, such as of a loss with a penalty.

In: a tensor of the graph that is traced. Out: its terms, and the factor of each. For a loss of two kinds,
`(tf.reduce_sum(losses) - penalty) / 64`::

    Term(Sum)        1 / 64
    Term(penalty)    -1 / 64

A term may be a sum over the examples, and another one a mean: each counts in its own way over the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from autodist_core.capture.traversal import reached_from, sources
from autodist_core.step.op_types import OF_SHAPES

_SUMS = {"Add", "AddV2", "AddN", "Sub"}
_ALONE = {"Identity", "Neg", "Cast"}
_POWERS = {"Mul": 1, "RealDiv": -1}
_MOST = 1000
"""A number with more terms stays whole. A number that is added to itself again and again has as many as 2**n."""


def without(operations: Collection[str]) -> Callable[[Any], bool]:
    """Whether a tensor is computed without the values of these operations; their sizes may be used.

    >>> with tf.Graph().as_default():
    ...     x, rate = tf.constant([1.0, 2.0], name="x"), tf.constant(0.1)
    ...     is_fixed = without({"x"})
    ...     is_fixed(rate), is_fixed(2.0 * x), is_fixed(tf.shape(x)[0])
    (True, False, True)
    """
    def is_size(operation: Any) -> bool:
        return operation.type in OF_SHAPES

    return lambda tensor: reached_from([tensor.op], sources, is_size).keys().isdisjoint(operations)


@dataclass(frozen=True, eq=False)
class Term:
    """One term: a tensor, and the operation that takes it, on the way to the number.

    >>> with tf.Graph().as_default():
    ...     number = (tf.constant(1.0) - tf.constant(2.0)) / tf.constant(4.0, name="size")
    ...     first, second = terms_of(number)
    >>> [(by.op.name, power) for by, power in second.numbers], second.position
    ([('size', -1)], 1)
    """

    tensor: Any
    above: Term | None = None
    """The result of the operation, on the way to the number."""
    position: int = 0
    """The position of the tensor among the operation's inputs."""

    @property
    def numbers(self) -> list[tuple[Any, int]]:
        """The numbers by which the term is multiplied on the way to the number, each with its power: 1, or -1."""
        found, term = [], self
        while term.above is not None:
            operation = term.above.tensor.op
            if operation.type in _POWERS:
                found.append((operation.inputs[1 - term.position], _POWERS[operation.type]))
            term = term.above
        return found

    def factor(self, of_above: Any, casts: bool) -> Any:
        """The factor of this term, made of the factor of the one above; in the type of the tensor, if `casts`."""
        assert self.above is not None
        operation = self.above.tensor.op
        if operation.type == "Neg" or (operation.type == "Sub" and self.position == 1):
            return tf.negative(of_above)
        if operation.type in _POWERS:
            other = tf.cast(operation.inputs[1 - self.position], of_above.dtype)
            return of_above * other if operation.type == "Mul" else of_above / other
        return tf.cast(of_above, self.tensor.dtype) if casts else of_above


def terms_of(number: Any, is_fixed: Callable[[Any], bool] = lambda _: True, ends: Collection[int] = ()) -> list[Term]:
    """The terms of a number, or the tensor itself if it is no sum, or no number.

    Numbers for which `is_fixed` holds may be factors of a sum. Tensors whose `id` is in `ends` stay whole.

    >>> with tf.Graph().as_default():
    ...     one, two, three, four = (tf.constant(float(value), name=f"c{value}") for value in (1, 2, 3, 4))
    ...     number = (one - (two - three)) / four
    ...     [term.tensor.op.name for term in terms_of(number)], len(terms_of(number, ends={id(number)}))
    (['c1', 'c2', 'c3'], 1)
    """
    found: list[Term] = []
    waiting = [Term(number)]
    while waiting:
        term = waiting.pop()
        positions = [] if id(term.tensor) in ends else _parts(term.tensor, number.graph, is_fixed)
        inputs = term.tensor.op.inputs
        waiting += [Term(inputs[position], term, position) for position in reversed(positions)]
        if not positions:
            found.append(_below_a_sum(term))
        if len(found) + len(waiting) > _MOST:
            return [Term(number)]
    return found


def _parts(tensor: Any, graph: Any, is_fixed: Callable[[Any], bool]) -> Sequence[int]:
    """The positions of the inputs in which a number is linear, the other inputs being fixed; none for other numbers."""
    operation = tensor.op
    inputs = operation.inputs
    numbers = all(each.shape.rank == 0 and each.dtype.is_floating for each in (tensor, *inputs))
    if operation.graph is not graph or not numbers:
        return ()
    if operation.type in _SUMS:
        return range(len(inputs))
    if operation.type in _ALONE and "_gradient_op_type" not in operation.node_def.attr:
        return (0,)
    if operation.type == "Mul":
        return next(((at,) for at in (0, 1) if is_fixed(inputs[1 - at])), ())
    return (0,) if operation.type == "RealDiv" and is_fixed(inputs[1]) else ()


def _below_a_sum(term: Term) -> Term:
    """The term, with the factors that belong to it alone: the input of the last sum on the way to it."""
    while term.above is not None and term.above.tensor.op.type not in _SUMS:
        term = term.above
    return term


def factors(terms: Sequence[Term], first: Any, casts: bool = True) -> list[Any]:
    """The factor of each term, if the number counts `first` times. With `casts`, each in the type of its term.

    These are also the gradients of the number with respect to its terms.

    >>> with tf.Graph().as_default():
    ...     number = (tf.constant(1.0) - tf.constant(2.0)) / tf.constant(4.0)
    ...     found = factors(terms_of(number), tf.constant(1.0))
    ...     [float(value) for value in tf.compat.v1.Session().run(found)]
    [0.25, -0.25]
    """
    known: dict[Term | None, Any] = {}

    def factor(term: Term) -> Any:
        chain: list[Term] = []
        at: Term | None = term
        while at not in known and at is not None and at.above is not None:
            chain.append(at)
            at = at.above
        found = known.get(at, first)
        for each in reversed(chain):
            found = known[each] = each.factor(found, casts)
        return found

    return [factor(term) for term in terms]


def sum_of(terms: Sequence[Term], tensors: Sequence[Any], dtype: Any) -> Any:
    """The part of a number of this type that some of its terms make, with other tensors in place of theirs.

    >>> with tf.Graph().as_default():
    ...     number = (tf.constant(1.0) - tf.constant(2.0)) / tf.constant(4.0)
    ...     first, _ = terms_of(number)
    ...     float(tf.compat.v1.Session().run(sum_of([first], [2.0 * first.tensor], tf.float32)))
    0.5
    """
    ones = factors(terms, tf.ones([], dtype), casts=False)
    return tf.add_n([tf.cast(tensor, dtype) * factor for tensor, factor in zip(tensors, ones, strict=True)])
