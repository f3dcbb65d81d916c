"""Loops with `tf.distribute`'s methods: `scope`, `run`, `reduce` and distributed datasets, on the engine of `AutoDist`.

In: a resource spec, a strategy, and a loop that calls a `tf.distribute.Strategy`. Out: the loop's results. ::

    strategy     what a user holds: ReplicaStrategy; errors of a run within a trace, and of Keras's own loops
    functions    which functions are the same one, made anew
    run          one function on each replica, in Python or as an operation of somebody's trace
    context      what the function finds inside: the number of its replica, all_reduce
    dataset      elements with a slice of a batch for each replica
    on_machines  which datasets each machine runs, and which elements are batches of them
    values       values of each replica: reduced, gathered, looked at one by one
    extended     what TensorFlow's own libraries call
"""

from autodist_core.loops.distribute.strategy import ReplicaStrategy, distribute

__all__ = ["ReplicaStrategy", "distribute"]
