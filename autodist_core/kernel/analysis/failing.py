"""Find the nodes of a captured step that can fail after the forward pass has run.

In: the index of a captured step, and gradients. Out: the last nodes on the way to these gradients that can fail. For a
dense layer with a softmax loss::

    SparseSoftmaxCrossEntropyWithLogits    can fail: a label may be out of range
    gradient_tape/MatMul                   cannot: the forward pass has checked the shapes
    AddN                                   cannot: it adds gradients of the tape

Gradients that TensorFlow's tape derives compute with tensors whose shapes the forward pass has checked. Custom
gradients and the forward pass can fail. So can operations that check values (assertions, lookups, labels, integer
division), and convolutions, whose libraries refuse some sizes.
"""

from collections.abc import Iterable

from autodist_core.kernel.analysis.shapes import partial_shapes, static_shapes
from autodist_core.step import naming
from autodist_core.step.index import StepIndex

_TAPE = "gradient_tape/"  # the scope in which TensorFlow's tape calls the gradient functions of TensorFlow's operations

_SAFE_IN_TAPE = frozenset({
    "Abs", "AddV2", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Cos", "DivNoNan", "Einsum", "Erf", "Exp",
    "Expm1", "Greater", "GreaterEqual", "Less", "LessEqual", "Log", "Log1p", "LogSoftmax", "LogicalAnd", "MatMul",
    "Maximum", "Minimum", "Mul", "Neg", "RealDiv", "Reciprocal", "Rsqrt", "Sigmoid", "Sign", "Sin", "Softmax", "Sqrt",
    "Square", "Sub", "Sum", "Tanh",
    "BroadcastTo", "Cast", "ConcatV2", "Const", "ExpandDims", "Fill", "OnesLike", "Pack", "Pad", "Reshape",
    "SelectV2", "Shape", "ShapeN", "Slice", "Squeeze", "Tile", "Transpose", "Unpack", "ZerosLike",
    "BiasAddGrad", "EluGrad", "LeakyReluGrad", "Relu6Grad", "ReluGrad", "RsqrtGrad", "SeluGrad", "SigmoidGrad",
    "SoftplusGrad", "SoftsignGrad", "SqrtGrad", "StridedSliceGrad", "TanhGrad",
})


def last_to_fail(step: StepIndex, names: Iterable[str]) -> list[str]:
    """Return the nodes after which no node can fail any more on the way to these gradients of a scalar loss.

    If a tensor that is no scalar enters the backward pass from outside the tape, no shape is certain. The result is
    then all of `names`.

    >>> from autodist_core.capture.example import example_step
    >>> step = StepIndex(example_step())
    >>> last_to_fail(step, step.markers)
    ['gradient_tape/Prod', 'gradient_tape/pow/Pow']
    """
    names = list(names)
    on_the_way = step.cone(names, lambda name: not _is_safe(step, name))
    doubtful = {name for name in on_the_way if not _is_safe(step, name)}
    backward = step.behind(name for name in step.position if _TAPE in name)
    if any(name in backward and _TAPE not in name and not _is_number(step, name) for name in doubtful):
        return names
    before = step.cone(source for name in doubtful for source in step.sources(name))
    return step.in_order(doubtful - before)


def _is_number(step: StepIndex, name: str) -> bool:
    return static_shapes(step).get(name) == () and f"{name}:1" not in partial_shapes(step)


def _is_safe(step: StepIndex, name: str) -> bool:
    node = step.nodes[name]
    if naming.branch_of(node):
        return False
    if node.op == "Identity" or not node.input:
        return True
    if node.op == "AddN":  # outside its scope, the tape adds the gradients of one tensor
        return all(_is_of_tape(step, source) for source in step.sources(name))
    return node.op in _SAFE_IN_TAPE and _TAPE in name


def _is_of_tape(step: StepIndex, name: str) -> bool:
    while step.nodes[name].op == "AddN":
        name = step.sources(name)[0]
    return _TAPE in name
