"""Which operations of a step make the result of one example depend on other examples.

A replica has its part of a batch only, so such an operation gives other numbers there than on one device. The analysis
follows the batch axis of each tensor from the inputs on, through functions and loops, and runs nothing. In: a traced
step. Out: the operations that mix examples, the variables and results that the replicas' values are not combined to,
and the operations of which the table of rules says nothing.

Gradients are not followed: what a gradient makes of a mixed value follows from what the forward pass made.
"""

from autodist_core.capture.batch_axis.finding import Coupling, Found, Kept, Returned
from autodist_core.capture.batch_axis.flow import follow
from autodist_core.capture.batch_axis.state import NO_CLAIM, State, mean_over_examples, rows

__all__ = ["NO_CLAIM", "Coupling", "Found", "Kept", "Returned", "State", "follow", "mean_over_examples", "rows"]
