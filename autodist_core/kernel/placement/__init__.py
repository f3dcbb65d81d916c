"""Where everything lives: which device holds which copy of which variable.

`arrangement` decides how a step carries a strategy out, which is what the plan prints. `placement` puts it on devices,
and is the value that every kernel reads. `shared_memory` says which replicas compute on one copy. `devices` maps a
device of the resource spec to a device of TensorFlow.
"""
