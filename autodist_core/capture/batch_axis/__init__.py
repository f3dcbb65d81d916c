"""Find the operations of a step that make the result of one example depend on other examples.

In: a traced step. Out: a `Found`: the operations that mix examples, the variables and results for which the replicas'
values do not combine to one device's value, and the operations that the table of rules does not have. For a layer that
subtracts the mean of the batch::

    mean = Mean(x, axis 0)    mixed: one value of all examples, made by Mean
    Sub(x, mean)              a coupling: Mean gives each example a value of the whole batch

A replica has its slice of a batch only, so such an operation gives other numbers there than on one device. The analysis
follows the batch axis of each tensor from the inputs on, through functions and loops. It runs nothing. `flow` walks
over the operations, `rules` has a rule for each type of operation, and `state` is what is known of one tensor.
`sentences` puts findings into words.

Gradients are not followed: a gradient mixes examples only where the forward pass does.
"""

from autodist_core.capture.batch_axis import sentences
from autodist_core.capture.batch_axis.finding import Coupling, Found, UncombinedResult, UncombinedWrite
from autodist_core.capture.batch_axis.flow import follow
from autodist_core.capture.batch_axis.joining import joined, to_be_joined
from autodist_core.capture.batch_axis.state import (
    ALIKE,
    LARGEST,
    MIXED,
    NO_CLAIM,
    RAGGED,
    REDUCED,
    ROWS,
    SAME,
    SMALLEST,
    SUM,
    State,
    mean_over_examples,
    rows,
)

__all__ = [
    "ALIKE", "LARGEST", "MIXED", "NO_CLAIM", "RAGGED", "REDUCED", "ROWS", "SAME", "SMALLEST", "SUM", "Coupling",
    "Found", "State", "UncombinedResult", "UncombinedWrite", "follow", "joined", "mean_over_examples", "rows",
    "sentences", "to_be_joined",
]  # fmt: skip
