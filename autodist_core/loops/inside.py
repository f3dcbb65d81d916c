"""What is known inside a trace: values that are added up over the replicas, and rows of all replicas.

In: a value, while a function is traced. Out: a marker in its place, by which the sum or the rows are made when the
traced function is distributed.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from autodist_core.capture import reached_from, rows_of_all, sources
from autodist_core.capture.gradients.recording import Recording
from autodist_core.loops.gradients.changed import Changed
from autodist_core.loops.gradients.summed_again import Origins
from autodist_core.loops.nested_markers import ROWS, SUM, given_to_sums


@dataclass
class Inside:
    """What is known inside a trace, and what the trace leaves behind.

    >>> with tf.Graph().as_default() as graph:
    ...     inside = Inside(Recording(graph), tf.constant(3.0), tf.constant(4.0), tf.constant(0))
    ...     total = inside.add_up(tf.constant(2.0))
    >>> [marker.op.name for marker in inside.sums]
    ['sum_over_replicas']
    """

    recording: Recording
    examples: Any
    total: Any
    replica: Any
    """The number of the replica."""
    result: Any = None
    sums: list[Any] = field(default_factory=list)
    """Markers of values that are added up over the replicas."""
    values: list[Any] = field(default_factory=list)
    """Those of them that are not gradients of sums."""
    gathers: list[Any] = field(default_factory=list)
    """Markers of values that become the rows of all replicas."""
    replicas: int = 0
    """The number of replicas, in a function of `run()`."""
    own: frozenset[str] = frozenset()
    """The placeholders of the replica's own values, by name."""
    held: frozenset[int] = frozenset()
    """The handles of variables that hold sums of gradients, each as its `id`."""
    completed: dict[str, Any] = field(default_factory=dict)
    """The values of which sums are made, without what counts on each replica, by the operation that adds that."""
    notes: dict[str, str] = field(default_factory=dict)
    """Notes on the sums, by their markers."""
    slices: list[tuple[Any, Any]] = field(default_factory=list)
    """Those of them that belong to the rows of one sparse tensor: the markers of its values and of its indices."""

    def add_up(self, value: Any) -> Any:
        """The sum of a value over the replicas. Its gradient is the sum of the replicas' gradients."""
        if not self.recording.is_here():
            return tf.identity(value, name=SUM)
        value, note = self._counted(value)

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def added(value: Any) -> Any:
            self.values.append(self._marked(value))
            self.notes[self.values[-1].op.name] = note
            return self.values[-1], self._marked

        return added(value)

    def changed(self) -> Changed:
        """What becomes of the gradients that the function has computed so far."""
        handles = [placeholder for value, placeholder in self.recording.graph.captures if id(value) in self.held]
        reads = [each.outputs[0] for handle in handles for each in handle.consumers() if each.type == "ReadVariableOp"]
        return Changed(self.recording.found, self.own, reads)

    def _counted(self, value: Any) -> tuple[Any, str]:
        """A value of which a sum is made, where what is no gradient counts on each replica; and a note on it."""
        if not self.replicas:
            return value, ""
        changed = self.changed()
        note = changed.note(value)
        more = None if note else changed.added(value)
        if not note and more is None:
            return value, ""
        sums, _ = Origins([*self.sums, *self.gathers], self.recording.found).of([value])
        if sums or note:
            return value, "" if sums else note  # what is a sum already is added up again as a whole
        whole = value + tf.cast(self.replicas - 1, value.dtype) * more
        self.completed[whole.op.name] = value
        return whole, ""

    def notes_on(self, updates: Collection[str]) -> tuple[str, ...]:
        """The notes on sums over the replicas of which updates write something, one for all variables."""
        graph = self.recording.graph
        writing = [each for each in graph.get_operations() if each.name in updates and each.op_def.is_stateful]
        needed = reached_from(writing, sources)
        said = [note for name, note in self.notes.items() if name in needed]
        if self.replicas:
            said += [self.changed().note(each, once=True) for each in given_to_sums(graph, updates)]
        # TensorFlow numbers the names of operations that the same code makes for one variable after the other.
        return tuple({re.sub(r"_\d+", "", note): note for note in reversed(said) if note}.values())[::-1]

    def gather(self, value: Any) -> Any:
        """The rows of all replicas. The gradient of a row is the sum of the replicas' gradients."""
        if not self.recording.is_here():
            return tf.identity(value, name=ROWS)
        return rows_of_all(value, self._rows, self._marked, self.replica)

    def gather_slices(self, values: Any, indices: Any) -> tuple[Any, Any]:
        """The values and the indices of a sparse tensor, with the rows of all replicas."""
        before, note = len(self.gathers), self.changed().note_of_rows(values) if self.replicas else ""
        found = self.gather(values), self.gather(indices)
        if self.recording.is_here():
            of_values, of_indices = self.gathers[before:]
            self.slices.append((of_values, of_indices))
            self.notes[of_values.op.name] = note
        return found

    def _marked(self, value: Any) -> Any:
        self.sums.append(tf.identity(value, name=SUM))
        return self.sums[-1]

    def _rows(self, value: Any) -> Any:
        self.gathers.append(tf.identity(value, name=ROWS))
        return self.gathers[-1]
