"""The terms of a number that is a sum of numbers, such as of a loss with a penalty.

In: a tensor of the graph that is traced. Out: its terms. For a loss of two kinds::

    Term(Sum), Term(penalty), Term(Mean, negative=True)

A term may be a sum over the examples, and another one a mean: each counts in its own way over the replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

_SUMS = {"Add", "AddV2", "AddN", "Sub"}


@dataclass(frozen=True)
class Term:
    """One term: a tensor, and whether it is subtracted."""

    tensor: Any
    negative: bool = False

    def signed(self, value: Any) -> Any:
        """The value with the term's sign."""
        return tf.negative(value) if self.negative else value


def terms_of(number: Any) -> list[Term]:
    """The terms of a number, or the tensor itself if it is no sum, or no number.

    >>> with tf.Graph().as_default():
    ...     one, two, three = (tf.constant(float(value), name=f"c{value}") for value in (1, 2, 3))
    ...     [(term.tensor.op.name, term.negative) for term in terms_of(one - (two - three))]
    [('c1', False), ('c2', True), ('c3', False)]
    """
    return _terms(Term(number), number.graph)


def _terms(term: Term, graph: Any) -> list[Term]:
    operation = term.tensor.op
    numbers = all(each.shape.rank == 0 for each in (term.tensor, *operation.inputs))
    if operation.type not in _SUMS or not numbers or operation.graph is not graph:
        return [term]
    return [
        found for position, each in enumerate(operation.inputs)
        for found in _terms(Term(each, term.negative != (operation.type == "Sub" and position == 1)), graph)
    ]
