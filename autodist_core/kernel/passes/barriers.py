"""Barriers: no variable is written before everything that can fail has run, so a step that raises changes nothing.

In: the copies of compute, `draft.compute`. Out: `draft.barriers`, one node for each update, for which every write of
that update waits. For a step with one update on two replicas::

    barrier/0/replica0 = NoOp(^replica0/gradient, ^replica0/loss, ^replica0/assert)
    barrier/0/replica1 = NoOp(^replica1/gradient, ^replica1/loss, ^replica1/assert)
    barrier/0          = NoOp(^barrier/0/replica0, ^barrier/0/replica1)

A label out of range, an assertion or a metric that raises would otherwise end the step with some variables written and
others not. So an update waits for every gradient and every side effect before it. What compute writes (batch
statistics, metrics) waits for the gradients, the results and the other side effects, unless one of these needs the
written value.

On CPU devices of one process, an update waits only for the operations of the backward pass that can fail. The rest of
the backward pass then runs at the same time as the first updates, which need memory bandwidth rather than the
processor. A GPU can run out of memory at any operation, and another machine can be lost at any time. There an update
waits for all gradients.
"""

from collections.abc import Iterable

from autodist_core.kernel.analysis.shapes import partial_shapes, static_shapes
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.step import naming
from autodist_core.step.index import StepIndex, analysis


class Barriers(Kernel):
    """Adds one barrier for compute's writes, and one for the update of each occurrence.

    >>> from autodist_core.kernel.example import example_change
    >>> from autodist_core.strategy import PS
    >>> example_change(PS(), "Barriers", "NoOp")
    'NoOp: 0 -> 6'
    """

    needs = ("compute",)
    provides = ("barriers",)

    def apply(self, draft: Draft) -> None:
        """Add the barriers. The kernel `Update` lets its writes wait for them."""
        step = draft.step
        side = [
            name for name in step.in_order(step.side_effects)
            if name not in draft.placement.after_update(step) and name not in _following(step)
        ]
        results = _results(draft, side)
        for occurrence in sorted(step.forward_updates):
            # The forward pass needs what this update writes, and an update of gradients needs the forward pass.
            draft.barriers[occurrence] = _add(draft, f"barrier/{occurrence}", [])
        occurrences = [each for each in step.occurrences if each not in step.forward_updates]
        for occurrence in occurrences:
            applied = [each for each in step.item.gradients if each.occurrence == occurrence]
            gradients = [naming.node_of(name) for gradient in applied for name in draft.sources(gradient)]
            # A gradient that is not weighted may come from a loss that is no scalar, with gradients from outside.
            # XLA compiles a piece when it first runs, and may fail then.
            certain = not (step.item.jit_compile or step.item.handed_in)
            known = draft.placement.on_cpus_of_one_process and certain
            if known and all(gradient.weighted for gradient in applied):
                gradients = last_to_fail(step, gradients)
            if occurrence == occurrences[0]:
                _hold_back(draft, gradients, side, results)
            waits_for = dict.fromkeys([*gradients, *side, *results])
            draft.barriers[occurrence] = _add(draft, f"barrier/{occurrence}", waits_for)


def _add(draft: Draft, name: str, waits_for: Iterable[str]) -> str:
    """Add a node that waits for these nodes on every active replica; each replica sends it one signal."""
    there = [
        draft.editor.add(
            "NoOp", f"{name}/{replica.prefix}", [f"^{replica.copy_of(other)}" for other in waits_for], replica.host
        )
        for replica in draft.active_replicas
    ]
    return draft.editor.add("NoOp", name, [f"^{other}" for other in there], draft.active_replicas[0].host)


def _results(draft: Draft, side: list[str]) -> list[str]:
    """Return the nodes of compute whose values are results of the step and exist before the update."""
    step = draft.step
    afterwards = step.written_by(step.writers.difference(side, step.update_of))
    return [
        name for name in map(naming.node_of, step.item.outputs)
        if _is_there(draft, name) and name not in draft.placement.after_update(step) and name not in _following(step)
        and not _looks_at(step, name, afterwards)
    ]


def _looks_at(step: StepIndex, name: str, variables: set[str]) -> bool:
    return not step.touched_by(step.cone([name])).isdisjoint(variables)


def _is_there(draft: Draft, name: str) -> bool:
    return all(replica.copy_of(name) in draft.editor for replica in draft.active_replicas)


@analysis
def _following(step: StepIndex) -> frozenset[str]:
    """Return the nodes that need what an update of this step has written, or what such a node has written.

    A node that writes what such a node has read is one of them, too.
    """
    numbers = [each for each in step.occurrences if each not in step.forward_updates]
    first = min((step.position[node] for node, number in step.update_of.items() if number in numbers), default=step.end)
    written = set[str]().union(*(step.written_in(number) for number in numbers))
    # The update writes the shards of a split variable, and compute reads the variable put together.
    written |= {step.variables[variable].part_of for variable in written}
    found, seen = set[str](), set[str]()
    for name in list(step.position)[first + 1 :]:
        touched, writes = step.touched_by([name]), step.written_by([name])
        if not found.isdisjoint(step.sources(name)) or written & touched or seen & writes:
            found.add(name)
            written |= writes
            seen |= touched
    return frozenset(found)


def _hold_back(draft: Draft, gradients: list[str], side: list[str], results: list[str]) -> None:
    step = draft.step
    writes = [name for name in side if name in step.writers]
    values = [source for name in writes for source in step.sources(name) if _is_there(draft, source)]
    written = step.written_by(writes)
    others = [name for name in results if not _looks_at(step, name, written)]
    vital = list(dict.fromkeys([*gradients, *(name for name in side if name not in writes), *values, *others]))
    needed = step.cone(vital, sources=lambda name: _before(draft, name))
    held_back = [name for name in writes if name not in needed]
    if held_back:
        waits = _add(draft, "barrier/state", vital)
        for replica in draft.active_replicas:
            for name in held_back:
                draft.editor.control(replica.copy_of(name), waits)


def _before(draft: Draft, name: str) -> list[str]:
    """Return the nodes whose copies run before those of a node: its inputs, and earlier writes of what it touches."""
    step = draft.step
    inputs = [source for source in map(naming.node_of, step.nodes[name].input) if source in draft.compute]
    writers = step.writes_of(step.touched_by([name]))
    return [*inputs, *(writer for writer in writers if step.position[writer] < step.position[name])]


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

    For a dense layer with a softmax loss::

        SparseSoftmaxCrossEntropyWithLogits    can fail: a label may be out of range
        gradient_tape/MatMul                   cannot: the forward pass has checked the shapes
        AddN                                   cannot: it adds gradients of the tape

    Gradients that TensorFlow's tape derives compute with tensors whose shapes the forward pass has checked. Custom
    gradients and the forward pass can fail. So can operations that check values (assertions, lookups, labels, integer
    division), and convolutions, whose libraries refuse some sizes.

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
    return step.in_order(doubtful - step.cone(source for name in doubtful for source in step.sources(name)))


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
