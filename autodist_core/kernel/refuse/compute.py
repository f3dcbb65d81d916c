"""Refuse compute that replicas cannot run, each on its slice of the batch.

In: the index of a captured step, and its placement. Out: an error for each violation::

    gradients are computed from 'total', read at 'Read_3': this variable is summed up over the replicas, ...
"""

import re
from collections.abc import Iterator

import tensorflow as tf

from autodist_core.errors import AutodistError, CaptureError, NotYetError
from autodist_core.kernel.analysis.gradient_flow import compute_of
from autodist_core.kernel.placement.placement import Placement
from autodist_core.resource_spec import DeviceSpec
from autodist_core.step.index import StepIndex

_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_OF_GRADIENTS = re.compile(r"(^|/)(gradient_tape|gradients(_[0-9]+)?)/")  # scopes of gradients, also in functions


def compute_refused(step: StepIndex, placement: Placement) -> Iterator[AutodistError]:
    """Yield an error for each violation in compute.

    >>> from autodist_core import GraphItem
    >>> from autodist_core.kernel.placement.placing import inference
    >>> list(compute_refused(StepIndex(GraphItem(())), inference(("localhost:CPU:0",))))
    []
    """
    if len(placement.replicas) > 1:
        yield from _without_sums(step)
        yield from _partial_state(step)
        yield from _shared_forward_passes(step)
    yield from _python_elsewhere(step, placement)
    after_update = placement.after_update(step)
    gradients = [name for each in step.item.gradients for name in each.parts]
    names = compute_of(step, gradients, after_update, placement.handed_back(step))
    for name in names:
        if step.is_update(name) and name in step.writers:
            yield CaptureError(
                f"the step's result or later computation reads {name!r} ({step.nodes[name].op}), which the "
                "optimizer's apply both computes and writes. Read the variable after apply instead."
            )
    yield from _served_elsewhere(step, placement, [*names, *step.in_order(after_update)])


def _without_sums(step: StepIndex) -> Iterator[CaptureError]:
    """Refuse a variable that would be added up or averaged over the replicas, and whose values have no sum."""
    for name in sorted(step.written_by_compute):
        variable = step.variables[name]
        dtype = tf.as_dtype(variable.dtype)
        if variable.aggregation in ("sum", "mean") and not (dtype.is_floating or dtype.is_complex or dtype.is_integer):
            yield CaptureError(
                f"{name!r} is a variable of dtype {variable.dtype} with the aggregation {variable.aggregation!r}, and "
                "such values cannot be added up over the replicas. Write it as tf.logical_or or tf.logical_and of its "
                "own value and others: then the replicas' values are combined in the same way. Or keep a number, or "
                "leave the aggregation out."
            )


def _partial_state(step: StepIndex) -> Iterator[CaptureError]:
    """Refuse gradients that need a variable with the aggregation `sum`: only the first replica has the sum."""
    refused = set()
    for name in step.in_order(step.cone(step.markers)):
        for touch in step.touches.get(name, ()) if not step.is_update(name) else ():
            if step.variables[touch.variable].aggregation == "sum" and touch.variable not in refused:
                refused.add(touch.variable)
                yield CaptureError(
                    f"gradients are computed from {touch.variable!r}, read at {name!r}: this variable is summed up "
                    "over the replicas, and each replica has only its part of the sum. Use a variable of the model's "
                    "own that is no metric's."
                )


def _shared_forward_passes(step: StepIndex) -> Iterator[CaptureError]:
    """Refuse the gradient of a `tf.py_function`: TensorFlow keeps one forward pass of it, the last replica's."""
    for node in (*step.graph.node, *(each for function in step.graph.library.function for each in function.node_def)):
        if node.op == "EagerPyFunc" and _OF_GRADIENTS.search(node.name):
            yield CaptureError(
                f"{node.name!r} is the gradient of a tf.py_function, for which TensorFlow keeps one forward pass in a "
                "process, whichever replica's it is. Write it with TensorFlow's operations, give it a gradient by "
                "tf.custom_gradient, or train with one replica."
            )


def _python_elsewhere(step: StepIndex, placement: Placement) -> Iterator[CaptureError]:
    """Refuse Python in the graph where replicas run in other processes than the user's."""
    addresses = {DeviceSpec.parse(replica.name).address for replica in placement.replicas}
    if not placement.tasks.job and len(addresses) == 1:
        return
    for node in (*step.graph.node, *(each for function in step.graph.library.function for each in function.node_def)):
        if node.op in _PYTHON:
            yield CaptureError(
                f"{node.name!r} ({node.op}) calls Python (tf.py_function, tf.numpy_function), and the replicas run in "
                "processes of several machines, which do not have that Python function. Write it with TensorFlow's "
                "operations, call it in the dataset's map, which your program runs, or train on one machine."
            )


def _served_elsewhere(step: StepIndex, placement: Placement, names: list[str]) -> Iterator[NotYetError]:
    """Refuse a step whose compute reads a slot that only a server has."""
    refused = set[str]()
    for name in names:
        for variable in sorted(step.touched_by([name]) & placement.owner_of.keys() - placement.mirrored - refused):
            owner = placement.owner(placement.owner_of[variable])
            copy = placement.mirror(variable, placement.replicas[0])
            if owner.replica is None and copy != placement.owned_copy(variable, owner):
                refused.add(variable)
                yield NotYetError(
                    f"the step reads the optimizer's variable {variable!r} outside apply (at {name!r}), and it lives "
                    f"on {owner.device}. Use AllReduce for the variable it belongs to."
                )
