"""The updates that a traced function makes of its gradients, and how gradients count in functions of `run()`.

In: a traced function, and what was recorded of its gradients (see `autodist_core.capture.gradients`). Out: the
operations of the update, and what is added up over the replicas::

    own_gradients  the gradients of each replica, of which results of run() are made
    summed_again   what the updates of run() add up a second time
    accumulated    which variables hold sums of gradients already, and how values count that run() adds up
    changed        what run() adds to a gradient before an optimizer gets it
    updates        the operations that make new values of variables from gradients
"""
