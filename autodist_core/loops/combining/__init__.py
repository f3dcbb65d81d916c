"""What counts how over the replicas: losses, results, and writes of a function's own variables.

In: a traced function, its gradients, and the state of each tensor (see `autodist_core.capture.batch_axis`). Out: the
decisions with which the function is captured. `deciding` asks the other modules, and makes the plan's notes on other
numbers than one device's::

    side_state       how additions to metrics count over replicas
    own_writes       which other writes to variables are refused
    updates_by_hand  which assignments of gradients `run` counts otherwise than tf.distribute
    totals           which sums and means are the whole batch's before more is computed from them
    recomputed       what runs once more for the whole batch
    joining          how the replicas' results become one
"""
