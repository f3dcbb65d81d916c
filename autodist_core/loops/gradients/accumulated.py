"""Find the variables of `run()`'s functions that hold sums of gradients already, and what is made of them.

In: the graph of a traced function, its markers, and what the functions traced before did. Out: how the markers count of
values that are added up. A function adds each replica's own gradient to a variable, and another one applies it::

    total.assign_add(gradient)             an update gets the sum over the replicas, so `total` holds the sum
    optimizer.apply([total], [weight])     adds `total` up: it counts once, as tf.distribute's variable of each replica

    total.assign_add(all_reduce("SUM", gradient))
    optimizer.apply([total], [weight])     adds up what is the same on all replicas: times the number of replicas
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from autodist_core.capture import inputs_first, touches_of
from autodist_core.capture.gradients.recording import Differentiation, handle_of
from autodist_core.capture.tape import draws
from autodist_core.capture.traced import Counted
from autodist_core.errors import CaptureError
from autodist_core.loops.gradients.summed_again import summed_again
from autodist_core.loops.gradients.updates import Updates
from autodist_core.loops.variables import Accumulated, Variables
from autodist_core.training import Entry

_OWN, _SUMMED, _BATCH = "own", "summed", "batch"
"""What a value is made of: the replica's own gradients, sums over the replicas, other values of the batch."""
_ADDING = {"Add", "AddV2", "AddN", "Sub", "ConcatV2", "Pack"}
_ADDITIONS = {"AssignAddVariableOp", "AssignSubVariableOp"}


class _SumsSearch:
    def __init__(
        self, graph: Any, variables: Mapping[str, str], gradients: Collection[str], markers: Sequence[Any],
        batch: Collection[str], known: Accumulated, combined: Collection[str],
    ) -> None:
        self._operations = inputs_first(graph)
        self._touches = touches_of(self._operations, variables)
        self._gradients, self._batch, self._trained, self._combined = gradients, batch, known.trained, combined
        self._markers = {marker.op.name for marker in markers}
        self._written = {_OWN: set(known.own), _SUMMED: set(known.summed), _BATCH: set[str]()}
        self.made_of: dict[str, frozenset[str]] = {}
        """What each tensor is made of."""
        self.read: dict[str, frozenset[str]] = {}
        """The variables of which it is made."""

    def run(self) -> tuple[set[str], set[str]]:
        """The variables that hold own gradients, and sums. A value may be written after its variable is read."""
        before = -1
        while before != (before := sum(map(len, self._written.values()))):
            for operation in self._operations:
                self._follow(operation)
        return self._written[_OWN], self._written[_SUMMED]

    def only_added(self, updates: Collection[str]) -> frozenset[str]:
        """The variables that get nothing but additions of own gradients, by operations of the updates."""
        others: set[str] = set()
        found: set[str] = set()
        for operation in self._operations:
            for touch in self._touches.get(operation.name, ()):
                adds = operation.type in _ADDITIONS and operation.name in updates
                if touch.writes and adds and self.made_of[operation.inputs[1].name] == {_OWN}:
                    found.add(touch.variable)
                elif touch.writes:
                    others.add(touch.variable)
        return frozenset(found - others - self._trained)

    def _follow(self, operation: Any) -> None:
        touched = self._touches.get(operation.name, ())
        names = frozenset(touch.variable for touch in touched if not touch.writes)
        of_variables = frozenset(kind for kind, held in self._written.items() if held & names)
        inputs = [(self.made_of[tensor.name], self.read[tensor.name]) for tensor in operation.inputs]
        made_of, read = self._together(operation, [of_variables, *(each for each, _ in inputs)]), names
        read = read.union(*(each for _, each in inputs))
        if operation.name in self._gradients:
            made_of, read = frozenset({_OWN}), frozenset()
        elif operation.name in self._markers:
            made_of = frozenset({_SUMMED})
        elif operation.name in self._batch or draws(operation) or _is_outside(operation, touched):
            made_of |= {_BATCH}
        for touch in touched:
            if touch.writes and touch.variable not in self._trained:
                for kind in made_of if _BATCH not in made_of else {_BATCH}:
                    summed = kind == _OWN and touch.variable in self._combined
                    self._written[_SUMMED if summed else kind].add(touch.variable)
        each_alone = operation.type == "IdentityN"
        for index, tensor in enumerate(operation.outputs):
            self.made_of[tensor.name] = inputs[index][0] if each_alone else made_of
            self.read[tensor.name] = inputs[index][1] if each_alone else read

    def _together(self, operation: Any, parts: Sequence[frozenset[str]]) -> frozenset[str]:
        """What a value is made of. Own gradients that are divided by a sum stay the replica's own."""
        found = frozenset[str]().union(*parts)
        mixed = operation.type in _ADDING or any({_OWN, _SUMMED} <= part for part in parts)
        return found if mixed or _OWN not in found else found - {_SUMMED}


def _is_outside(operation: Any, touched: Collection[Any]) -> bool:
    """Whether an operation may give something else on every replica, such as a function of Python."""
    return bool(operation.op_def is not None and operation.op_def.is_stateful and not touched)


def counted_sums(
    graph: Any, markers: Sequence[Any], slices: Sequence[tuple[Any, Any]], found: Sequence[Differentiation],
    entries: Sequence[Entry], new: Collection[str], batch: Sequence[Any], updates: Updates, variables: Variables,
    replicas: int,
) -> tuple[dict[str, Counted], list[Entry]]:
    """How the markers count that are not added up over the replicas, by name; and the entries of the variables.

    Those outside the updates are among them, and those there that are sums already. `batch` are the placeholders of
    each replica's own values. A variable with the aggregation SUM to which the function adds gradients has one value
    for all replicas. That is said in its entry, if the variable is `new`: no function was captured with another one.

    >>> total = tf.Variable(1.0, name="total")
    >>> graph = tf.function(lambda: tf.identity(total, name="sum")).get_concrete_function().graph
    >>> marker, updates = graph.get_operation_by_name("sum").outputs[0], Updates((), {}, (), frozenset())
    >>> known = Variables()
    >>> counted, _ = counted_sums(
    ...     graph, [marker], (), (), [known.entry(total)], ["total"], (), updates, known, 2
    ... )
    >>> counted["sum"].times
    2
    """
    known, names = variables.accumulated, {id(entry.handle): entry.spec.name for entry in entries}
    outside = {id(placeholder): value for value, placeholder in graph.captures}
    handles = {placeholder.op.name: names[id(value)] for value, placeholder in graph.captures if id(value) in names}
    given = [handle_of(each.variable) for call in found for each in call.gradients]
    known.train(names[id(outside.get(id(handle), handle))] for handle in given)
    gradients = {marker.op.name for call in found for marker in call.markers}
    combined = {entry.spec.name for entry in entries if _is_combined_when_written(entry.tf_variable)}
    search = _SumsSearch(graph, handles, gradients, markers, {tensor.op.name for tensor in batch}, known, combined)
    own, summed = search.run()
    counted: dict[str, Counted] = {}
    multiplied: set[str] = set()
    for marker in markers:
        name = marker.op.name
        made_of, read = search.made_of[marker.op.inputs[0].name], search.read[marker.op.inputs[0].name]
        held = sorted(read & own)
        if _BATCH in made_of or (name in updates.operations and (not held or _SUMMED in made_of)):
            continue
        if held and _SUMMED in made_of:
            raise CaptureError(
                f"all_reduce adds up a value that is made of {held[0]!r}, to which run() adds the replicas' own "
                "gradients, and of sums over the replicas. Reduce the gradients before they are written: "
                'variable.assign_add(get_replica_context().all_reduce("SUM", gradient)). The apply of an optimizer '
                "calls all_reduce, too: give it the sum divided by num_replicas_in_sync."
            )
        multiplied |= read if not held else set()
        # What is held is the sum already, and counts once. A function without gradients gets a multiple of the others.
        if held or (not gradients and marker.dtype.is_floating):
            counted[name] = Counted(0, marker.dtype.base_dtype, 0, 1 if held else replicas)
    known.learn(own, summed, multiplied)
    holding = {
        entry.spec.name for entry in entries if entry.spec.aggregation == "sum" and entry.spec.name in new
    } & search.only_added(updates.operations)
    again = summed_again(markers, slices, updates.operations, found, replicas)
    once = {name: how for name, how in counted.items() if name in again or name not in updates.operations}
    return {**again, **once}, [
        variables.holding_gradients(entry) if entry.spec.name in holding else entry for entry in entries
    ]


def _is_combined_when_written(variable: Any) -> bool:
    """Whether tf.distribute adds up what the replicas write to a variable at once, and not when it is read."""
    added_up = variable.aggregation == tf.VariableAggregation.SUM
    return added_up and variable.synchronization != tf.VariableSynchronization.ON_READ
