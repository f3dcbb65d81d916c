"""Loops without `fit`: a user marks the functions of a loop, and they run over all replicas.

In: Python functions and their arguments. Out: the functions' results, and variables that are trained. `autodist.py` is
what a user holds. A call of a marked function goes through these files in order::

    graph_mode    draws the batch, where the argument is a handle of one
    arguments     which arguments are batches, and which are plain Python
    function      captures the function for each kind of arguments (traced_function), and runs it
    tracing       traces the function into a flat graph
    replica       what the function finds inside: all_reduce (nested_markers: in a conditional)
    terms         the terms of a loss or of a result
    recording     the gradients that it computes, with markers behind them
    own_gradients the gradients of each replica, of which results of run() are made
    summed_again  what the updates of run() add up a second time
    updates       the operations that make new values of variables from gradients
    deciding      what counts how over the replicas, with the modules below
    weighing      which losses are sums over the examples, and which are means
    side_state    how additions to metrics count over replicas
    own_writes    which other writes to variables are refused
    joining       how the replicas' results become one
    mixing_notes  what the plan says of other numbers than one device's

`engine` has what all functions of one `AutoDist` share, `variables` the names of their variables, and `distribute/` the
methods of `tf.distribute`. `function_plan` makes the plan of a marked function. `recomputed` finds what runs once more
for the whole batch. `outer_tapes` refuses gradients of a call's results. `outside_trace` leaves a trace for a while,
and `as_written` keeps TensorFlow from rewriting a method. `example` has what the docstrings of these files show.
"""

from autodist_core.loops.autodist import AutoDist
from autodist_core.loops.distribute import ReplicaStrategy
from autodist_core.loops.function import Function

__all__ = ["AutoDist", "Function", "ReplicaStrategy"]
