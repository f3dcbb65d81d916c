"""Refuse a traced step that cannot be distributed. Each module looks for one obstacle.

In: a traced step. Out: nothing, or a `CaptureError` that names the operation and the remedy::

    mixed_weights    gradients of two kinds are added up at 'AddN_3': ... Let the sum of all terms go there, or none.
    second_use       'Sum_2' (Sum) makes part of a loss of the gradient of a variable, ... Leave that term out, ...
"""
