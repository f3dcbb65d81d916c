"""Gather variables when they are used: each use has a read of its own, which begins when the use two before has ended.

In: a captured step, and the variables that replicas gather from their shards. Out: a captured step. For three layers::

    read 1, matmul 1, read 2, matmul 2, read 3, matmul 3, backward 3, backward 2 (matmul 2's read), ...
    ->  matmul 1 before read 3, and backward 2 has `read 2/use_4`, a read that waits for matmul 2

`rewrite` makes a gather of each read afterwards. So a replica has the weights of two uses: those with which it
computes, and those of the next use, which travel meanwhile. Small weights travel more uses ahead, and from one machine
to another in one message (`WeightsTogether`): a message takes its time however short it is. A read of one's own and its
control edge are also what keeps TensorFlow from making one gather of two. A use that follows soon enough on another one
of the same variable has that one's value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autodist_core.step import naming
from autodist_core.step.editor import Editor
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.grouping import by_key
from autodist_core.step.index import StepIndex
from autodist_core.step.op_types import OF_SHAPES

AHEAD_BYTES = 1 << 22
"""The most bytes of the weights that travel ahead of their uses. Those of the next use always travel ahead."""
_ALONG = {"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "Transpose"}
"""Operations whose results are as large as the weight: each use has its own, too."""


def gathered_when_used(item: GraphItem, variables: Mapping[str, int]) -> GraphItem:
    """Return the step in which each use of one of these variables has a read of its own, at its time.

    The numbers say for how many further uses, of whatever variables, a value is kept.

    >>> from autodist_core.capture.example import example_step
    >>> item = example_step()
    >>> gathered_when_used(item, {}) is item
    True
    """
    return _Gathers(item, variables).run() if variables else item


@dataclass
class _Use:
    """Consecutive nodes that compute with the value of one read, and no other gathered value between them."""

    read: str
    readers: list[str]


class _Gathers:
    """The rewriting of one step."""

    def __init__(self, item: GraphItem, variables: Mapping[str, int]) -> None:
        self.item, self.step, self.kept_for = item, StepIndex.of(item), variables
        self.variable_of = {
            name: touched[0].variable for name, touched in self.step.touches.items()
            if self.step.nodes[name].op == "ReadVariableOp" and touched[0].variable in variables
            and not self.step.is_update(name)
        }
        self.origin = self._origins()
        self.uses = self._uses()
        self.editor = Editor(self.step.graph.library, self.step.graph.versions)

    def run(self) -> GraphItem:
        uses_of = by_key((reader, number) for number, use in enumerate(self.uses) for reader in use.readers)
        first_of, last_of, value_of = dict[str, int](), dict[str, int](), list[int]()
        for number, use in enumerate(self.uses):
            first_of.setdefault(use.read, number)
            before = last_of.get(use.read, number)
            # The value of the same variable's use before, so many uses ago, may be there still.
            is_kept = 0 < number - before <= self.kept_for[self.variable_of[use.read]]
            value_of.append(value_of[before] if is_kept else number)
            last_of[use.read] = number
        for name, node in self.step.nodes.items():
            inputs = list(node.input)
            if name in first_of:
                inputs += self._anchor(first_of[name], name)
            for number in uses_of.get(name, ()):
                if self._is_read_again(self.uses[value_of[number]], first_of):
                    inputs = [self._own(source, value_of[number]) for source in inputs]
            self.editor.copy_captured(node, name, inputs)
        graph = self.editor.graph_def(captured=True)
        return replace(self.item, graph_bytes=graph.SerializeToString(deterministic=True))

    def _origins(self) -> dict[str, str]:
        """Return, for each read and for each node that only hands its value on, the read."""
        found = {name: name for name in self.variable_of}
        for name, node in self.step.nodes.items():
            sources = [naming.node_of(source) for source in naming.data_inputs(node)]
            if node.op in _ALONG and sources and sources[0] in found and not self.step.is_update(name):
                found[name] = found[sources[0]]
        return found

    def _uses(self) -> list[_Use]:
        found: list[_Use] = []
        for name, node in self.step.nodes.items():
            if name in self.origin or node.op in OF_SHAPES or self.step.is_update(name) or name not in self.step.alive:
                continue
            sources = (naming.node_of(source) for source in naming.data_inputs(node))
            for read in dict.fromkeys(self.origin[source] for source in sources if source in self.origin):
                if found and found[-1].read == read:
                    found[-1].readers.append(name)
                else:
                    found.append(_Use(read, [name]))
        return found

    def _is_read_again(self, use: _Use, first_of: dict[str, int]) -> bool:
        """Whether a use has a read of its own. It has the first read's value if the variable is written in between."""
        position = self.step.position
        if self.uses[first_of[use.read]] is use:
            return False
        return not any(
            position[use.read] < position[other] < position[use.readers[0]] and other in self.step.writers
            for other in self.step.touching[self.variable_of[use.read]]
        )

    def _anchor(self, number: int, read: str) -> list[str]:
        """Return the control edge from the use after which this use's gather begins, if that is before `read`."""
        if number < 2:
            return []
        before, ahead = number - 2, self._size(number - 1) + self._size(number)
        while before > 0 and (ahead := ahead + self._size(before)) <= AHEAD_BYTES:
            before -= 1
        last, nodes, position = self.uses[before].readers[-1], self.step.nodes, self.step.position
        path, around = naming.branch_of(nodes[last]), naming.branch_of(nodes[read])
        # A node in a branch has no value where the branch is not taken.
        return [f"^{last}"] if path == around[: len(path)] and position[last] < position[read] else []

    def _size(self, number: int) -> int:
        return self.step.variables[self.variable_of[self.uses[number].read]].byte_size

    def _own(self, source: str, number: int) -> str:
        """Return a use's own copy of a tensor, if the tensor is a gathered value."""
        name, output = naming.split(source)
        if output < 0 or self.origin.get(name) != self.uses[number].read:
            return source
        copy, node = f"{name}/use_{number}", self.step.nodes[name]
        if copy not in self.editor:
            inputs = [self._own(each, number) for each in node.input]
            inputs += self._anchor(number, self.uses[number].readers[0]) if name in self.variable_of else []
            self.editor.copy_captured(node, copy, inputs)
        return naming.tensor(copy, output)
