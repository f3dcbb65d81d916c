"""Follow the batch axis through the operations of a traced step, in the order of their creation.

In: a traced step, and states of tensors that the front knows. Out: a `Found`. The rule of an operation's type
(`rules.table`) gives the states of its results. For a mean over the batch in a layer::

    x                 rows along axis 0
    Mean(x, axis 0)   a mean over the examples, made by Mean
    Sub(x, mean)      rows along axis 0; noted as a coupling: Mean gives each example a value of the whole batch
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.capture.batch_axis.given import Known, known_states, last_writes, states_of_inputs
from autodist_core.capture.batch_axis.replicas import is_combined, is_returned, read
from autodist_core.capture.batch_axis.rules import by_example, inner, lists, ragged, writes
from autodist_core.capture.batch_axis.rules.arithmetic import added, is_always_true
from autodist_core.capture.batch_axis.rules.table import RULES, Rule
from autodist_core.capture.batch_axis.states import finding, operations, places
from autodist_core.capture.batch_axis.states.constants import value_of
from autodist_core.capture.batch_axis.states.finding import Coupling, Found, UncombinedResult, UncombinedWrite
from autodist_core.capture.batch_axis.states.reduced import Number, Size
from autodist_core.capture.batch_axis.states.sizes import settled
from autodist_core.capture.batch_axis.states.state import NO_CLAIM, SAME, Alike, Handle, Rows, State
from autodist_core.capture.batch_axis.step_results import uncombined
from autodist_core.capture.tape import Tape
from autodist_core.capture.traced import Traced
from autodist_core.capture.traversal import reached_from, sources
from autodist_core.step.graph_item import Variable
from autodist_core.step.op_types import WITHOUT_VALUES

_RULES: Mapping[str, Rule] = {**RULES, **inner.RULES, **lists.RULES}
_SILENT = {*WITHOUT_VALUES, "BroadcastGradientArgs", "NoOp"}
"""Operations that read the size of a tensor, or nothing, and no values."""
_GRADIENT = ("Grad", "Backprop")
"""Parts of the types of operations that occur in gradients only."""


class Flow:
    """One walk over the operations of a traced step.

    >>> import tensorflow as tf
    >>> graph = tf.function(lambda: tf.sqrt(4.0)).get_concrete_function().graph
    >>> flow = Flow(Traced(graph, (), (), graph.outputs, examples=None, total=None), {}, ())
    >>> flow.over(graph)
    >>> flow.state_of(graph.outputs[0])
    Alike()
    """

    def __init__(self, traced: Traced, known: Mapping[int, Known], whole: Collection[str] = ()) -> None:
        self._traced, self._whole, self._known = traced, whole, {**known, **known_states(traced)}
        self._last_write = last_writes(traced)
        self.tape = Tape()
        # What the walk has found, each under a key by which it is noted once; operations with those that run them.
        self._couplings: dict[tuple[int, str], Coupling] = {}
        self._uncombined_writes: dict[int, UncombinedWrite] = {}
        self._undecided: dict[int, tuple[Any, Any]] = {}
        self._of_gradients: dict[int, tuple[Any, Any]] = {}
        self.states: dict[int, State] = states_of_inputs(traced)
        self._by_rules = dict(self.states)
        """The states as the rules give them, whatever the caller knows."""
        self._written: dict[str, State] = {}
        """What the writes that the walk has come to have made of variables."""
        self._position = 0
        self._call: Any = None
        """The operation of the step, if the walk is in a function that it runs."""
        self._has_gradients = False
        """Whether the walk has come to a gradient."""
        self.rounds: Any = None
        """The loop over the examples whose body is being walked over."""
        self.repeats = False
        """Whether the current operation runs as often as the batch has examples, or as a value of the batch says."""
        self.writes = 0
        """How many writes of variables the walk has come to."""

    # For rules ---------------------------------------------------------------------------------------------------

    def couple(self, operation: Any, what: str, by: Any = None) -> State:
        """Note an operation that makes the result of one example depend on others; nothing is claimed of the result.

        `by` is the operation that uses the result for single examples, if that is another one.
        """
        by = operation if by is None else by
        if (self._call or by).name not in self._whole:
            # A value of a nested function is used where the function was called, or within it.
            within = self._call or (operation if operation.graph is self._traced.graph else by)
            self._couplings.setdefault((id(operation), what), Coupling(operation, what, within, by))
        return NO_CLAIM

    def couple_values(self, states: Sequence[State], by: Any) -> None:
        """Note each value of the whole batch, and each number of examples, that an operation uses for single ones."""
        for state in states:
            if state.couples:
                self.couple(state.origin, finding.SCALED if isinstance(state, Number) else finding.BATCH_VALUE, by)
            elif isinstance(state, Size) and state.degree:
                self.couple(by, finding.SCALED)

    def undecide(self, operation: Any) -> None:
        """Note that it is not known whether an operation mixes examples."""
        if (self._call or operation).name not in self._whole:
            self._undecided.setdefault(id(operation), (operation, self._call or operation))

    def is_input(self, placeholder: Any, of_rows: bool) -> bool:
        """Whether a placeholder is an input of the step; in a function, an argument that has rows of the batch."""
        in_function = placeholder.graph is not self._traced.graph
        return of_rows if in_function else any(placeholder.outputs[0] is each for each in self._traced.inputs)

    @staticmethod
    def axes_of(tensor: Any, rank: int | None) -> list[int] | None:
        """Return the axes that a tensor holds; None if they are not known."""
        axes = value_of(tensor)
        if axes is None or rank is None:
            return None
        return [int(axis) % rank if rank else 0 for axis in np.atleast_1d(axes)]

    def state_of(self, tensor: Any) -> State:
        """Return what is known of a tensor."""
        return self.states.get(id(tensor), NO_CLAIM)

    def run(self, graph: Any, states: Sequence[State], call: Any) -> list[State]:
        """Return the states of a function's results, from the states of its arguments."""
        before, self._call = self._call, self._call or call
        try:
            self.states.update({id(tensor): state for tensor, state in zip(graph.inputs, states, strict=True)})
            for operation in graph.get_operations():
                self._visit(operation)
            return [self.states.get(id(tensor), NO_CLAIM) for tensor in graph.outputs]
        finally:
            self._call = before

    # The walk ----------------------------------------------------------------------------------------------------

    def over(self, graph: Any) -> None:
        """Visit all operations of a step but those of its updates, whose values are equal on all replicas."""
        for at, operation in enumerate(graph.get_operations()):
            self._position = at
            if operation.name not in self._traced.updates:
                self._visit(operation)
            else:
                self.states.update({id(tensor): SAME for tensor in operation.outputs})

    def _visit(self, operation: Any) -> None:
        outputs, kind = operation.outputs, operation.type
        if kind == "Placeholder":
            self.states.setdefault(id(outputs[0]), SAME)
            return
        states = [settled(operation, self.state_of(tensor)) for tensor in operation.inputs]
        if any(state is not SAME for state in states) and by_example.created(operation):
            self._keep(outputs, by_example.states_of(self, operation, states))
            return
        if "gradient" in operation.name:
            self._has_gradients = True
        elif self._has_gradients and self._uses_gradient(operation, states):
            self._of_gradients.setdefault(id(operation), (operation, self._call or operation))
        if kind not in inner.RULES and all(state is SAME or state is NO_CLAIM for state in states):
            # No input depends on the batch. Most operations of a gradient end here.
            state = NO_CLAIM if NO_CLAIM in states else SAME
            self._keep(outputs, [state] * len(outputs))
            return
        couplings = len(self._couplings)
        found = self._found(operation, states)
        if isinstance(found, State):
            found = [found] * len(outputs)
        if any(state.stride for state in states):
            found = places.followed(self, operation, states, found)
        if len(self._couplings) == couplings and self._is_undecided(operation, states, found):
            self.undecide(operation)
        self._keep(outputs, found)

    def _uses_gradient(self, operation: Any, states: Sequence[State]) -> bool:
        """Whether an operation that is no part of a gradient computes with one that depends on the batch."""
        return not is_silent(operation) and any(
            not isinstance(state, (Alike, Handle)) and tensor.dtype != tf.variant and self.tape.made(tensor.op)
            for tensor, state in zip(operation.inputs, states, strict=True)
        ) and not self.tape.made(operation)

    def _keep(self, outputs: Sequence[Any], found: Sequence[State]) -> None:
        for tensor, state in zip(outputs, found, strict=True):
            # A function is visited once for each call. The states of markers, and those that the front knows, stay.
            known = self._known.get(id(tensor), state)
            if callable(known):
                known = state = known(self.state_of)
            self.states[id(tensor)] = known
            self._by_rules[id(tensor)] = state

    def _is_undecided(self, operation: Any, states: Sequence[State], found: Sequence[State]) -> bool:
        """Whether what depends on the batch goes into an operation, and nothing is known of its results.

        If an input is unknown already, the operation's results are not reported again.
        """
        return (
            any(state != SAME for state in states) and NO_CLAIM not in states
            and not any(isinstance(state, Handle) for state in states)
            and operation.type not in inner.RULES and not any(part in operation.type for part in _GRADIENT)
            and any(
                state == NO_CLAIM and id(tensor) not in self._known
                for tensor, state in zip(operation.outputs, found, strict=True)
            )
        )

    def _found(self, operation: Any, states: Sequence[State]) -> State | list[State]:
        kind = operation.type
        if kind == "IdentityN":
            return list(states)
        if states and isinstance(states[0], Handle) and kind not in ("ResourceGather", "ResourceGatherNd"):
            if kind == "ReadVariableOp":
                return self._read(states[0].variable, operation)
            if kind in inner.RULES:
                return _RULES[kind](self, operation, states)
            return self._write(states[0].variable, operation, states)
        if kind not in operations.CONSTANT and ragged.has_parts(states):
            if ragged.pads(operation) and operation not in self._traced.longest:
                return NO_CLAIM
            return [ragged.followed(operation, states)] * len(operation.outputs)
        couplings, rule = len(self._couplings), _RULES.get(kind)
        found = NO_CLAIM if rule is None else rule(self, operation, states)
        if found == NO_CLAIM and len(self._couplings) == couplings and any(map(ragged.are_flat_values, states)):
            return [ragged.followed(operation, states)] * len(operation.outputs)
        return found

    def _read(self, variable: Variable, operation: Any) -> State:
        after = self._position > self._last_write.get(variable.name, -1)
        return read(variable, after, self._written.get(variable.name), operation)

    def _write(self, variable: Variable, operation: Any, states: Sequence[State]) -> State:
        self.writes += 1
        if not writes.is_known(operation):
            self._written[variable.name] = NO_CLAIM
            if variable.kind not in ("optimizer", "seed"):
                self.undecide(operation)
            return NO_CLAIM
        before = read(variable, False, self._written.get(variable.name), operation)
        value, adds = writes.value_written(self, operation, states), operation.type in writes.ADDING
        if not is_combined(variable, value, operation, adds):
            self._uncombined_writes.setdefault(
                id(operation), UncombinedWrite(variable, value, operation, self._call or operation)
            )
            value = NO_CLAIM
        # The axes of the result of an addition of rows cannot be followed.
        adds = adds and not isinstance(value, Rows)
        after = added(self, operation, [before, value]) if adds else inner.combined(before, value)
        self._written[variable.name] = writes.partly(operation, before, value, after)
        return SAME

    # Results -----------------------------------------------------------------------------------------------------

    def found(self) -> Found:
        """Return the findings. Operations of gradients, and operations that no result needs, are left out."""
        traced = self._traced
        couplings = [each for each in self._couplings.values() if self._is_forward(each.operation, each.by)]
        undecided = [each for each in self._undecided.values() if self._is_forward(each[0])]
        of_gradients = [each for each in self._of_gradients.values() if each[0].type != "Identity"]
        if couplings or undecided or of_gradients:
            used = self._used()
            of_gradients = [each for each in of_gradients if each[1].name in used]
            couplings = [each for each in couplings if each.within.name in used]
            undecided = [each for each in undecided if each[1].name in used]
        return Found(
            tuple(couplings),
            tuple(each for each in self._uncombined_writes.values() if self._is_forward(each.state.origin)),
            tuple(uncombined(traced, self.states)) if traced.concat_outputs else tuple(
                UncombinedResult(index, state) for index, tensor in enumerate(traced.outputs)
                if not is_returned(state := self.states.get(id(tensor), NO_CLAIM), tensor.dtype)
                and self._is_forward(state.origin)
            ),
            tuple({each[0].type: each for each in reversed(undecided)}.values()),
            tuple(of_gradients), self._by_rules,
        )

    def _is_forward(self, *operations: Any) -> bool:
        return not any(each is not None and self.tape.made(each) for each in operations)

    def _used(self) -> set[str]:
        """Return the names of the operations that gradients, written variables or results need."""
        ends = [gradient.values.op for gradient in self._traced.gradients]
        ends += [tensor.op for tensor in self._traced.outputs] + list(self._traced.graph.control_outputs)
        return set(reached_from(ends, lambda operation: () if is_silent(operation) else sources(operation)))


def is_silent(operation: Any) -> bool:
    """Whether the result of an operation depends on no value of its inputs. An assertion has no result.

    >>> with tf.Graph().as_default():
    ...     is_silent(tf.raw_ops.Shape(input=[1.0]).op)
    True
    """
    return operation.type in _SILENT or is_always_true(operation) or inner.asserts(operation)


def follow(traced: Traced, known: Mapping[int, Known], whole: Collection[str] = ()) -> Found:
    """Follow the batch axis through a traced step; `known` has the states that the front knows, by tensor id.

    A state may be known by a function that makes it of the states of other tensors. `whole` names operations that run
    for the whole batch: what they do with its examples is no finding.

    >>> import tensorflow as tf
    >>> specs = [tf.TensorSpec((None,), tf.float32), *[tf.TensorSpec((), tf.float64)] * 2]
    >>> step = tf.function(lambda x, *_: x - tf.reduce_mean(x), autograph=False)
    >>> graph = step.get_concrete_function(*specs).graph
    >>> found = follow(Traced(graph, (), graph.inputs[:1], graph.outputs, *graph.inputs[1:]), {})
    >>> [(each.operation.type, each.what) for each in found.couplings]
    [('Mean', 'gives each example a value of the whole batch')]
    """
    flow = Flow(traced, known, whole)
    flow.over(traced.graph)
    return flow.found()
