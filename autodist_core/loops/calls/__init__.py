"""What happens around one call of a marked function, in Python.

In: the arguments of a call. Out: which of them are batches, and what TensorFlow may do with the call::

    graph_mode   draws the batch, where the argument is a batch handle
    arguments    which arguments are batches, and which are plain Python
    received     checks what methods of a strategy and of a replica context receive
    outer_tapes  refuses gradients of a call's results, and leaves a trace for a while
    as_written   keeps TensorFlow from rewriting a method
"""
