"""What the static analysis knows of one tensor, and how it finds this out.

In: a tensor of a traced step, and what is known of the tensors that it is computed from. Out: a `State`, which says
how the tensor's values depend on the examples of the batch::

    state         the states: the same on all replicas, rows of examples, shapes, and others
    reduced       the states of one value of the whole batch: sums, extremes, the number of examples
    finding       what is found where an operation makes examples depend on each other
    constants     values that a graph computes of constants alone
    operations    types of operations, in groups
    layout        how the entries along an axis belong to the examples
    sizes         functions of the number of examples
    places        positions of examples in the batch
    reshaping     the axis of the examples after a reshape, and the axes of products
    slice_bounds  the bounds of a slice along the batch axis
    rounds        loops with one round for each example
"""
