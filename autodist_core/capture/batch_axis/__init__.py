"""Find the operations of a step that make the result of one example depend on other examples.

In: a traced step. Out: a `Found`: the operations that mix examples, the variables and results for which the replicas'
values do not combine to one device's value, and the operations that the table of rules does not have. For a layer that
subtracts the mean of the batch::

    mean = Mean(x, axis 0)    mixed: one value of all examples, made by Mean
    Sub(x, mean)              a coupling: Mean gives each example a value of the whole batch

A replica has its slice of a batch only, so such an operation gives other numbers there than on one device. The analysis
follows the batch axis of each tensor from the inputs on, through functions and loops. It runs nothing::

    states        what is known of one tensor, and how it is found out
    rules         a rule for each type of operation
    given         what is known before the walk begins: the states of the inputs
    flow          walks over the operations in the order of their creation
    replicas      whether the kernels combine the replicas' values to one device's value
    step_results  how the replicas' integers and truth values become those of the whole batch
    sentences     findings in words
    trial         the analysis of one function, for the examples of the rules

Gradients are not followed: a gradient mixes examples only where the forward pass does.
"""

from autodist_core.capture.batch_axis import sentences
from autodist_core.capture.batch_axis.flow import Known, follow
from autodist_core.capture.batch_axis.states.finding import Coupling, Found, UncombinedResult, UncombinedWrite
from autodist_core.capture.batch_axis.states.reduced import Linear, Mixed, Nonlinear, Reduced, Size, Sum
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Alike, Rows, State
from autodist_core.capture.batch_axis.step_results import how_joined, joined

__all__ = [
    "NO_CLAIM", "SAME", "Alike", "Coupling", "Found", "Known", "Linear", "Mixed", "Nonlinear", "Reduced", "Rows",
    "Size", "State", "Sum", "UncombinedResult", "UncombinedWrite", "follow", "how_joined", "joined", "sentences",
]  # fmt: skip
