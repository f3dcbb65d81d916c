"""Placement: which device holds which copy of which variable.

In: a captured step and a compiled strategy. Out: a `Placement`::

    placement over 2 replicas
      replica0 = 10.0.0.1:CPU:0 on /device:CPU:0
      replica1 = 10.0.0.1:CPU:1 on /device:CPU:1
      owner memory on /device:CPU:0: 4 variables

`arrangement` decides how a step carries a strategy out, which is what the plan prints, and which replicas compute on
one copy. `placing` puts it on devices. `placement` is the value that every kernel reads. `devices` maps a device of the
resource spec to a device of TensorFlow. `update_portions` says which owner runs which nodes of the update.
"""
