"""The gradients that a traced function computes itself, and how its losses count over the replicas.

In: a function while it is traced, and afterwards the state of each tensor (see `autodist_core.capture.batch_axis`).
Out: a record of each differentiation, and the seeds of which the gradients are added up. Both fronts use it: loops of
the user's own for marked functions, and `autodist_keras` for training steps of the user's own::

    terms      the terms of a loss or of a result
    recording  the gradients that the function computes, with markers behind them
    weighing   which losses are sums over the examples, and which are means
    example    a function that is recorded, for the examples of docstrings
"""

from autodist_core.capture.gradients.recording import Differentiation, Recording, recorded
from autodist_core.capture.gradients.terms import Term, sum_of, terms_of, without
from autodist_core.capture.gradients.weighing import of_gradients_by, seeded, state_of_term, weighed

__all__ = [
    "Differentiation", "Recording", "Term", "of_gradients_by", "recorded", "seeded", "state_of_term",
    "sum_of", "terms_of", "weighed", "without",
]  # fmt: skip
