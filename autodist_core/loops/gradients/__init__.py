"""The gradients that a traced function computes, and the updates that it makes of them.

In: a function while it is traced, and afterwards its graph. Out: markers behind the gradients, and the operations of
the update::

    terms          the terms of a loss or of a result
    recording      the gradients that the function computes, with markers behind them
    own_gradients  the gradients of each replica, of which results of run() are made
    summed_again   what the updates of run() add up a second time
    accumulated    which variables hold sums of gradients already
    changed        what run() adds to a gradient before an optimizer gets it
    counting       how the values count that a function of run() adds up
    updates        the operations that make new values of variables from gradients
"""
