"""Loops without `fit`: a user marks the functions of a loop, and they run over all replicas.

In: Python functions and their arguments. Out: the functions' results, and variables that are trained. `autodist.py` is
what a user holds. A call of a marked function goes through these files in order::

    calls/           reads the arguments: which are batches, and which are plain Python
    function         captures the function for each kind of arguments, and runs it
    traced_function  keeps what is captured for each kind, and makes the plan
    tracing          traces the function into a flat graph
    inside           keeps what is added up over the replicas inside the trace
    replica          what the function finds inside: all_reduce
    nested_markers   the same in a conditional
    gradients/       records the gradients that the function computes, and finds the updates
    combining/       decides what counts how over the replicas: losses, results, and other writes
    engine           what all functions of one `AutoDist` share
    variables        the names of their variables
    distribute/      the methods of `tf.distribute`, on the same engine
"""

from autodist_core.loops.autodist import AutoDist
from autodist_core.loops.distribute import ReplicaStrategy
from autodist_core.loops.function import Function

__all__ = ["AutoDist", "Function", "ReplicaStrategy"]
