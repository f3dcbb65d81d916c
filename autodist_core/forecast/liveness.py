"""The most bytes that the tensors of a graph take at one time, in each memory.

In: the operations of a graph, with the bytes of their results. Out: for each memory, the bytes of each kind of tensor
when they are most. Operations run as TensorFlow's executor runs them: each when all that it depends on has run, those
that are ready first run first, and two run at the same time. A tensor is freed when its last reader has run. An
operation such as an addition writes its result over an input that nobody else reads::

    x -> Relu -> MatMul        Relu takes the memory of x; at MatMul, its result and that of Relu are there
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from autodist_core.step.grouping import by_key

ALIASES = frozenset({
    "Identity", "IdentityN", "Snapshot", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient",
    "CheckNumerics", "EnsureShape", "Bitcast", "ReadVariableOp", "Switch", "Merge", "TensorListFromTensor",
    "TensorListGetItem", "TensorListPopBack", "TensorListPushBack", "TensorListSetItem", "TensorListReserve",
    "EmptyTensorList", "TensorListResize",
})
"""Operations whose results are inputs of theirs, in the same memory."""
FILLING = frozenset({"TensorListPushBack", "TensorListSetItem"})
"""Operations that put a tensor, their last input, into a list, which keeps it."""
_ALIASES_OF_ALL = frozenset({"Sum", "Mean", "Max", "Min", "Prod", "Slice", "StridedSlice"})
"""Operations whose result is their input if it has as many bytes."""
_IN_PLACE = frozenset({
    "Add", "AddV2", "AddN", "Sub", "Mul", "MulNoNan", "Div", "RealDiv", "DivNoNan", "Maximum", "Minimum", "Pow",
    "SquaredDifference", "Neg", "Abs", "Square", "Sqrt", "Rsqrt", "Exp", "Expm1", "Log", "Log1p", "Tanh", "Sigmoid",
    "Sign", "Erf", "Erfc", "Reciprocal", "Relu", "Relu6", "Elu", "Selu", "LeakyRelu", "Softplus", "Softsign", "BiasAdd",
    "ReluGrad", "Relu6Grad", "EluGrad", "SeluGrad", "LeakyReluGrad", "SoftplusGrad", "TanhGrad", "SigmoidGrad",
    "SqrtGrad", "RsqrtGrad", "InvGrad", "ReciprocalGrad", "Select", "SelectV2", "ClipByValue", "Softmax", "LogSoftmax",
    "Floor", "Round", "CollectiveReduceV2", "SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits",
    "LogicalAnd", "LogicalOr", "LogicalNot",
})
"""Operations that write a result over an input of as many bytes that nobody else reads."""
_CHEAP = 1 << 16
"""The bytes of results up to which an operation runs at once."""
_AT_A_TIME = 2
"""How many operations that are not cheap run at the same time."""
ACTIVATIONS, GRADIENTS, BUFFERS = "activations", "gradients", "buffers"
"""The kinds of tensors."""


@dataclass(frozen=True)
class Operation:
    """One operation of a graph.

    >>> Operation("x", "Placeholder", "localhost", sizes=(8,)).sizes
    (8,)
    """

    name: str
    op: str
    memory: str
    """The memory of the device on which it runs."""
    inputs: tuple[tuple[int, int], ...] = ()
    """The tensors that it reads: for each, the index of the operation that makes it, and the number of the output."""
    waits: tuple[int, ...] = ()
    """The indices of operations that run before it, and of which it reads no tensor."""
    sizes: tuple[int, ...] = ()
    """The bytes of its results."""
    inner: int = 0
    """The bytes that it takes besides while it runs."""
    kind: str = ACTIVATIONS
    """What its results are."""
    kept: bool = False
    """Whether its results stay until the end."""


@dataclass
class _Buffer:
    size: int
    memory: str
    kind: str
    uses: int = 0
    is_free: bool = False


class Run:
    """One run of all operations of a graph.

    >>> x, relu = Operation("x", "MatMul", "a", sizes=(80,)), Operation("relu", "Relu", "a", ((0, 0),), sizes=(80,))
    >>> Run([x, relu, Operation("y", "MatMul", "a", ((1, 0),), sizes=(40,))]).most
    {'a': Counter({'activations': 120})}
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.most: dict[str, Counter[str]] = {}
        """For each memory, the bytes of each kind at the moment when they are most."""
        self._operations = operations
        self._buffers: list[_Buffer] = []
        self._made: dict[tuple[int, int], int] = {}
        self._copies: dict[tuple[int, int, str], int] = {}
        """The tensors that another memory has received."""
        self._live: dict[str, Counter[str]] = {}
        self._uses = Counter((*tensor, each.memory) for each in operations for tensor in each.inputs)
        others = (each for each in self._uses if each[2] != operations[each[0]].memory)
        self._readers = by_key(((source, output), memory) for source, output, memory in others)
        """The other memories that read a tensor."""
        self._run_all()

    def buffer(self, tensor: tuple[int, int]) -> int:
        """The number of the buffer in which a tensor was."""
        return self._made[tensor]

    def size(self, buffer: int) -> int:
        """The bytes of a buffer."""
        return self._buffers[buffer].size

    def _run_all(self) -> None:
        sources = [{source for source, _ in each.inputs} | {*each.waits} for each in self._operations]
        after: list[list[int]] = [[] for _ in sources]
        for index, before in enumerate(sources):
            for source in before:
                after[source].append(index)
        waiting = [len(before) for before in sources]
        small, large, running = deque[int](), deque[int](), deque[int]()

        def ready(index: int) -> None:
            each = self._operations[index]
            (small if sum(each.sizes) + each.inner <= _CHEAP or each.op in ALIASES else large).append(index)

        for index, count in enumerate(waiting):
            if not count:
                ready(index)
        while small or large or running:
            if small:
                done = small.popleft()
                self._start(done)
            elif large and len(running) < _AT_A_TIME:
                running.append(large.popleft())
                self._start(running[-1])
                continue
            else:
                done = running.popleft()
            self._end(done)
            for reader in after[done]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    ready(reader)

    def _read(self, index: int) -> list[int]:
        memory = self._operations[index].memory
        return [self._copies.get((*tensor, memory), self._made[tensor]) for tensor in self._operations[index].inputs]

    def _start(self, index: int) -> None:
        each, read = self._operations[index], self._read(index)
        for output, size in enumerate(each.sizes):
            found = self._reused(each, output, size, read)
            self._made[index, output] = found = self._new(size, each.memory, each.kind) if found is None else found
            self._buffers[found].uses += self._uses[index, output, each.memory] + each.kept
        if each.op in FILLING:
            self._buffers[read[-1]].uses += 1
        self._note(each.memory, each.inner)
        for output in range(len(each.sizes)):
            for memory in self._readers.get((index, output), ()):
                copy = self._new(self._buffers[self._made[index, output]].size, memory, BUFFERS)
                self._copies[index, output, memory] = copy
                self._buffers[copy].uses = self._uses[index, output, memory]
                self._note(memory)

    def _end(self, index: int) -> None:
        read = self._read(index)
        for found in read:
            self._buffers[found].uses -= 1
        made = (self._made[index, output] for output in range(len(self._operations[index].sizes)))
        for found in {*read, *made}:
            buffer = self._buffers[found]
            if buffer.uses <= 0 and not buffer.is_free:
                buffer.is_free = True
                self._live[buffer.memory][buffer.kind] -= buffer.size

    def _reused(self, each: Operation, output: int, size: int, read: Sequence[int]) -> int | None:
        """The input that becomes a result."""
        if not read:
            return None
        if each.op in ALIASES or (each.op in _ALIASES_OF_ALL and self._buffers[read[0]].size == size):
            return read[output if each.op == "IdentityN" else 0]
        if each.op in _IN_PLACE and not output:
            alone = (number for number in read if self._buffers[number].uses == 1)
            return next((number for number in alone if self._buffers[number].size == size), None)
        return None

    def _new(self, size: int, memory: str, kind: str) -> int:
        self._buffers.append(_Buffer(size, memory, kind))
        self._live.setdefault(memory, Counter())[kind] += size
        return len(self._buffers) - 1

    def _note(self, memory: str, inner: int = 0) -> None:
        now = self._live.get(memory, Counter())
        if now.total() + inner > self.most.get(memory, Counter()).total():
            self.most[memory] = +now + Counter({ACTIVATIONS: inner})
