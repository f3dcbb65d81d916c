"""The profile of a captured step: what it computes, and when each gradient is there.

In: a captured step, the machines, and the number of examples of a batch. Out: a `ModelProfile`. TensorFlow infers the
shapes, and nothing runs. The operations of products and convolutions are counted. Any other operation reads and writes
its elements. What runs in a loop or in a function counts as one operation.
"""

from collections import Counter
from math import prod
from typing import Any

from autodist_core.auto.profiles import ModelProfile, StepTimes, with_slots
from autodist_core.kernel import Factors, bytes_of_example, factors
from autodist_core.kernel.analysis.shapes import imported
from autodist_core.log import log
from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex
from autodist_core.step.naming import node_of
from autodist_core.strategy.compiled import VariablePlan
from autodist_core.strategy.synchronizers import AllReducePlan

ELEMENT = 30
"""Operations for one element of a result. Reading and writing one, at 8 GB in a second, takes as long as 20 to 30."""
_FREE = frozenset({
    "Const", "Identity", "IdentityN", "NoOp", "Placeholder", "ReadVariableOp", "Reshape", "Shape", "Squeeze",
    "ExpandDims", "StopGradient", "VarHandleOp",
})  # fmt: skip
"""Operations that compute and copy nothing."""
_MOST = 1 << 30


def profile_of(item: GraphItem, spec: ResourceSpec, examples: int) -> ModelProfile:
    """The profile of a step; of a step that is not captured, or not for batches of this size, what is assumed.

    >>> from autodist_core.capture.example import example_step
    >>> found = profile_of(example_step(), ResourceSpec.local(cpus=2), 4)
    >>> found.seen, list(found.ready), 0 < found.ready["kernel"] <= 1
    (True, ['kernel'], True)
    """
    if not item.gradients or not item.graph_bytes:
        return ModelProfile.assumed(item)
    step = StepIndex.of(item)
    try:
        graph = imported(step, examples, item.cross_replica_gathers)
    except ValueError as error:
        log.debug("What a step computes is not known for %d examples: %s", examples, error)
        return ModelProfile.assumed(item)
    done, after = 0.0, {}
    for node in step.graph.node:
        if not step.is_update(node.name):
            done += _operations(graph.get_operation_by_name(node.name))
        after[node.name] = done
    done = max(done, 1.0)
    ready: dict[str, float] = {}
    rows: dict[str, float] = {}
    measured: StepTimes | None = item.found.get(StepTimes)
    for gradient in item.gradients:
        name, made_by = gradient.variable, step.behind_identities(gradient.values).name
        share = after[made_by] / done if measured is None else measured.ends.get(made_by, after[made_by] / done)
        ready[name] = max(ready.get(name, 0.0), share)
        if gradient.indices:
            shape = graph.get_operation_by_name(node_of(gradient.indices)).outputs[0].shape
            rows[name] = _size(shape) / examples
    times = Counter(gradient.variable for gradient in item.gradients)
    return ModelProfile(done / examples, ready, rows, _factors(step, spec, times), times, with_slots(item), seen=True)


def _factors(step: StepIndex, spec: ResourceSpec, times: Counter[str]) -> dict[str, int]:
    """The bytes of an example's factors, for each variable of whose gradients all are products that can travel."""
    plans = {name: VariablePlan(step.variables[name], AllReducePlan(factor_rows=_MOST)) for name in times}
    found = factors(step, plans, [name for name, _ in spec.replica_devices])
    products = {key: each.product for key, each in found.items() if isinstance(each, Factors)}
    sizes = bytes_of_example(step, products, plans)
    return {name: sum(each) for name, each in sizes.items() if len(each) == times[name]}


def _operations(operation: Any) -> float:
    """The floating-point operations of one operation, or those that take as long as reading and writing its results."""
    if operation.type in _FREE:
        return 0.0
    shapes = [each.shape for each in operation.inputs]
    size = sum(_size(each.shape) for each in operation.outputs)
    if operation.type == "MatMul":
        return 2.0 * size * (shapes[0][0 if operation.get_attr("transpose_a") else 1] or 1)
    if operation.type in ("BatchMatMul", "BatchMatMulV2"):
        return 2.0 * size * (shapes[0][-2 if operation.get_attr("adj_x") else -1] or 1)
    if operation.type in ("Conv2D", "Conv3D"):
        return 2.0 * size * _size(shapes[1][:-1])
    if operation.type in ("Conv2DBackpropInput", "Conv3DBackpropInputV2"):
        return 2.0 * _size(shapes[2]) * _size(shapes[1][:-1])
    if operation.type in ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"):
        return 2.0 * _size(shapes[2]) * _size(operation.outputs[0].shape[:-1])
    return float(ELEMENT * size)


def _size(shape: Any) -> int:
    """The number of elements of a shape, as far as it is known."""
    return prod(size or 1 for size in shape.as_list()) if shape.rank is not None else 1
