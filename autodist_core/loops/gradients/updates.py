"""Find the updates of a traced function: the operations that make new values of variables from gradients.

In: the graph of a traced function, and the gradients that were recorded. Out: `Updates`. For a step of SGD with a
momentum that counts its steps::

    gradient = MatMul(...)                    compute
    marker   = Identity(gradient)             compute: its last operation
    new      = momentum * 0.9 + marker        update
    AssignVariableOp(momentum, new)           update
    AssignSubVariableOp(kernel, rate * new)   update
    AssignAddVariableOp(steps, 1)             update only if the operations above read `steps`

An operation belongs to an update if it needs gradients and no value of the batch besides. What such operations need of
variables and constants alone belongs to the update, too. No optimizer has to be known for this: it holds for Keras's,
for those of `tf.compat.v1.train`, and for assignments by hand.

Each call that computes gradients makes an update of its own, with its own number, the **occurrence**. Calls whose
gradients meet in one operation, as in one norm, make one, unless both have a gradient of the same variable.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autodist_core.capture import Marked, reached_from, sources, touches_of
from autodist_core.capture.gradients.recording import Differentiation, handle_of
from autodist_core.capture.tape import draws
from autodist_core.step.grouping import by_key
from autodist_core.step.index import Touch


@dataclass(frozen=True)
class Updates:
    """The updates of a traced function. `UpdateSearch` finds them, and has an example."""

    gradients: tuple[Marked, ...]
    """The gradients that are applied."""
    operations: dict[str, int]
    """The occurrence of each operation of an update, by the operation's name."""
    differentiations: tuple[Differentiation, ...]
    """The calls that computed these gradients."""
    made_of_gradients: frozenset[str]
    """The operations that compute with these gradients, or with variables that an update has written, and with no value
    of the batch besides."""
    own_writes: tuple[tuple[Any, str], ...] = ()
    """The operations outside the updates that write values of the batch, each with a variable that it writes."""
    after: frozenset[str] = frozenset()
    """The operations that compute with variables that an update has written, and with no gradient besides."""


class UpdateSearch:
    """A search for the updates; `inputs` are the batch.

    `name_of` gives the name of a variable by its handle, or nothing for another resource.
    What `results` are made of counts as applied: a result is made of the whole batch's gradients, too.
    `seeds` names the variables with the states of random generators, which no update has.

    >>> import tensorflow as tf
    >>> from autodist_core.capture.gradients.example import recorded_trace
    >>> kernel, seen = tf.Variable(tf.ones((3, 1))), tf.Variable(0)
    >>> def step(x):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_mean(x @ kernel)
    ...     kernel.assign_sub(tape.gradient(loss, kernel))
    ...     seen.assign_add(tf.shape(x)[0])
    ...     return loss
    >>> traced, recording = recorded_trace(step, kernel=kernel, seen=seen)
    >>> names = {id(source.handle): source.variable.name for source in traced.sources}
    >>> found = UpdateSearch(traced.graph, recording.found, traced.inputs, lambda handle: names[id(handle)]).run()
    >>> sorted(found.operations), [name for _, name in found.own_writes]
    (['AssignSubVariableOp', 'gradient'], ['seen'])
    """

    def __init__(
        self, graph: Any, found: Sequence[Differentiation], inputs: Iterable[Any], name_of: Callable[[Any], str],
        seeds: Iterable[str] = (), results: Iterable[Any] = (),
    ) -> None:
        self._operations = graph.get_operations()
        handles = {
            placeholder.op.name: name for value, placeholder in graph.captures
            if value.dtype == "resource" and (name := name_of(value))
        }
        self._touches = touches_of(self._operations, handles)
        self._found, self._name_of, self._seeds = found, name_of, frozenset(seeds)
        self._marks = {marker.op.name: call for call, each in enumerate(found) for marker in each.markers}
        self._results = {tensor.op.name for tensor in results}
        self._inputs = {tensor.op.name for tensor in inputs}
        ends = {*self._results, *self._marks, *self._touches}
        self._used = reached_from(
            (*(each for each in self._operations if each.name in ends), *graph.control_outputs), sources
        ).keys()
        """The operations on which a result, a gradient, or an effect depends."""
        self._before = self._needed_by_gradients()
        self._after: dict[str, int] = {}
        """The last call whose gradients need the value that a write replaces, and another update has written."""
        self._direct: dict[str, frozenset[int]] = {}
        """The calls from whose gradients an operation's value is computed, along tensors."""
        self._late: dict[str, int] = {}
        """The last call on whose update an operation depends through a variable."""
        self._of_batch: set[str] = set()
        """The operations with values of the batch, other than through gradients."""
        self._random: set[str] = set()
        self._variables_of_batch: set[str] = set()
        """The variables to which values of the batch were written."""
        self._written: dict[str, int] = {}
        """The last call whose update has written a variable."""
        self._read_again: dict[str, int] = {}
        """The last call whose gradients need a value that an update has written to a variable."""

    def run(self) -> Updates:
        """The updates that are found."""
        self._propagate()
        ours = {name for name in {**self._direct, **self._late} if name not in self._of_batch}
        trained = self._trained()
        if not trained:
            return Updates((), {}, (), frozenset(), self._own_writes({}))
        ours |= self._writes_of(trained)
        merged = self._merged()
        occurrence = {name: merged[self._call_of(name)] for name in ours}
        self._take_shared_state(occurrence)
        self._take_what_is_needed(occurrence)
        numbers = {call: number for number, call in enumerate(sorted(set(occurrence.values())))}
        applied = [(merged[call], each) for call, each in trained]
        return Updates(
            tuple(self._marked(each, numbers[call]) for call, each in applied if call in numbers),
            {name: numbers[call] for name, call in occurrence.items()},
            tuple(self._found[call] for call in sorted({call for call, _ in trained})),
            frozenset((self._direct.keys() | self._late.keys()) - self._of_batch), self._own_writes(occurrence),
            frozenset(self._late.keys() - self._direct.keys() - self._of_batch),
        )

    def _own_writes(self, updates: Mapping[str, int]) -> tuple[tuple[Any, str], ...]:
        return tuple(
            (operation, touch.variable) for operation in self._operations
            for touch in self._touches.get(operation.name, ())
            if touch.writes and operation.name in self._of_batch and operation.name not in updates
        )

    def _marked(self, gradient: Marked, occurrence: int) -> Marked:
        return replace(gradient, variable=self._name_of(handle_of(gradient.variable)), occurrence=occurrence)

    def _needed_by_gradients(self) -> dict[str, int]:
        """The operations from which gradients are computed, with the last call that needs each.

        They are compute, even if they use other gradients.
        """
        before: dict[str, int] = {}
        for call, each in enumerate(self._found):
            needed = reached_from((source for marker in each.markers for source in sources(marker.op)), sources)
            before |= dict.fromkeys(needed, call)
        return before

    def _propagate(self) -> None:
        """Follow values of the batch, random numbers and gradients through the operations, as they were made."""
        for operation in self._operations:
            name, behind = operation.name, {tensor.op.name for tensor in operation.inputs}
            if name in self._inputs:
                self._of_batch.add(name)
            elif name in self._marks and name not in self._before:
                self._direct[name] = frozenset({self._marks[name]})
            else:
                touched = self._touches.get(name, ())
                self._follow_batch(operation, behind, {touch.variable for touch in touched if not touch.writes})
                if name not in self._before:
                    written = [self._written[t.variable] for t in touched if t.variable in self._written]
                    self._follow(name, behind, written)
                for touch in touched:
                    self._note(name, touch)

    def _follow_batch(self, operation: Any, behind: set[str], read: set[str]) -> None:
        """Note whether an operation has values of the batch, or random numbers."""
        name, drawn = operation.name, draws(operation)
        through_variables = not self._variables_of_batch.isdisjoint(read)
        if through_variables or (drawn and name in self._before) or not self._of_batch.isdisjoint(behind):
            self._of_batch.add(name)
        if drawn or not self._random.isdisjoint(behind):
            self._random.add(name)

    def _note(self, name: str, touch: Touch) -> None:
        """Note what an access makes of a variable."""
        if touch.writes and name in self._of_batch:
            self._variables_of_batch.add(touch.variable)
        elif not touch.writes and touch.variable in self._written and name in self._before:
            self._read_again[touch.variable] = self._before[name]
        elif touch.writes and (name in self._direct or name in self._late):
            if touch.variable in self._read_again:
                self._after[name] = self._read_again[touch.variable]
            self._written[touch.variable] = self._call_of(name)

    def _follow(self, name: str, behind: Iterable[str], through_variables: Sequence[int]) -> None:
        direct = frozenset[int]().union(*(self._direct.get(source, frozenset()) for source in behind))
        late = [*through_variables, *(self._late[source] for source in behind if source in self._late)]
        if direct:
            self._direct[name] = direct
        if late:
            self._late[name] = max(late)

    def _call_of(self, name: str) -> int:
        own = max(self._direct[name]) if name in self._direct else self._late[name]
        return max(own, self._after.get(name, own))

    def _merged(self) -> dict[int, int]:
        """Map each gradient call to the first call of its update. Calls whose gradients meet make one update.

        Two gradients of one variable are reduced each by itself, so their calls keep numbers of their own. What uses
        both belongs to the update of the later call.
        """
        root = {call: call for call in range(len(self._found))}

        def find(call: int) -> int:
            while root[call] != call:
                call = root[call]
            return call

        variables = {
            call: {self._name_of(handle_of(gradient.variable)) for gradient in each.gradients}
            for call, each in enumerate(self._found)
        }
        for name, calls in self._direct.items():
            if name not in self._of_batch:
                for call in calls:
                    one, other = sorted((find(call), find(max(calls))))
                    if one != other and not variables[one] & variables[other]:
                        root[other] = one
                        variables[one] |= variables[other]
        return {call: find(call) for call in root}

    def _trained(self) -> list[tuple[int, Marked]]:
        """The gradients from which a variable's new value or a result is made, with their calls."""
        writes = {name for name, touched in self._touches.items() if any(touch.writes for touch in touched)}
        made = (writes | self._results) & (self._direct.keys() | self._late.keys())
        needed = reached_from(
            (operation for operation in self._operations if operation.name in made), sources,
            stop=lambda operation: operation.name in self._before,
        )
        return [
            (call, gradient) for call, each in enumerate(self._found) for gradient in each.gradients
            if any(marker.op.name in needed and marker.op.name in self._direct for marker in gradient.markers)
        ]

    def _writes_of(self, trained: Sequence[tuple[int, Marked]]) -> set[str]:
        """The writes of trained variables. One that needs the batch besides is refused later, where this is said."""
        names = {self._name_of(handle_of(gradient.variable)) for _, gradient in trained}
        return {
            name for name, touched in self._touches.items() if (name in self._direct or name in self._late)
            and any(touch.writes and touch.variable in names for touch in touched)
        }

    def _take_shared_state(self, occurrence: dict[str, int]) -> None:
        """Add the writes of variables that the updates read and that depend on nothing of the batch: step counters.

        Such a write belongs to the last of these updates whose gradients were computed before it. An update ends with
        its last write, so a later counter would let it end after the next update's gradients. If there is none, and
        gradients need the written value, the write is compute: an update comes after its gradients.
        """
        position = {operation.name: number for number, operation in enumerate(self._operations)}
        begin: dict[int, int] = {}
        for name, call in self._marks.items():
            begin[call] = min(position[name], begin.get(call, position[name]))
        needed = {
            touch.variable: position[name] for name, touched in self._touches.items() if name in self._before
            for touch in touched if not touch.writes
        }
        waiting = True
        while waiting:
            read = self._read_by(occurrence)
            waiting = False
            for name, touched in self._touches.items():
                written = [touch.variable for touch in touched if touch.writes]
                alone = name not in self._of_batch and name not in self._random and name not in self._before
                if name in occurrence or not alone or not any(variable in read for variable in written):
                    continue
                if not self._seeds.intersection(written):
                    calls = sorted(set().union(*(read.get(variable, ()) for variable in written)))
                    earlier = [call for call in calls if begin[call] < position[name]]
                    if not earlier and any(needed.get(variable, 0) > position[name] for variable in written):
                        continue
                    occurrence[name] = max(earlier, default=calls[0])
                    waiting = True

    def _read_by(self, occurrence: dict[str, int]) -> dict[str, list[int]]:
        """The variables that updates read, with the updates that read each."""
        needed = self._needs(occurrence)
        read = ((name, touch) for name, touched in self._touches.items() if name in needed for touch in touched)
        return by_key((touch.variable, needed[name]) for name, touch in read)

    def _needs(self, occurrence: dict[str, int]) -> dict[str, int]:
        """The operations that updates need, with the first update that needs each; nothing that gradients need."""
        needed = dict(occurrence)
        for operation in reversed(self._operations):
            if operation.name in needed:
                for tensor in operation.inputs:
                    name = tensor.op.name
                    if name not in self._before and name not in self._marks and name not in self._of_batch:
                        needed[name] = min(needed[operation.name], needed.get(name, needed[operation.name]))
        return needed

    def _take_what_is_needed(self, occurrence: dict[str, int]) -> None:
        """Add what the updates compute from variables and constants, unless compute needs the values as well."""
        needed = self._needs(occurrence)
        by_name = {operation.name: operation for operation in self._operations}
        others = [
            operation for operation in self._operations
            if operation.name in self._used and operation.name not in needed
            and operation.type not in ("Placeholder", "NoOp")
        ]
        shared = reached_from(
            (source for operation in others for source in sources(operation)), sources,
            stop=lambda operation: operation.name in occurrence,
        )
        for name, call in needed.items():
            if name not in shared and by_name[name].type != "Placeholder":
                occurrence[name] = call
