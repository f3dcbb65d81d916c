"""Follows the batch axis through the operations of a traced step, in the order in which they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.capture.batch_axis import inner
from autodist_core.capture.batch_axis.arithmetic import added
from autodist_core.capture.batch_axis.finding import Coupling, Found, Kept, Returned
from autodist_core.capture.batch_axis.replicas import is_combined, is_returned, read
from autodist_core.capture.batch_axis.rules import RULES, Rule
from autodist_core.capture.batch_axis.state import (
    NO_CLAIM,
    ONE,
    ROWS,
    SAME,
    SIZE,
    VARIABLE,
    State,
    rows,
)
from autodist_core.capture.tape import Tape
from autodist_core.capture.traced import Traced
from autodist_core.capture.traversal import reached_from, sources
from autodist_core.step.graph_item import Variable

_RULES: Mapping[str, Rule] = {**RULES, **inner.RULES}
_SILENT = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "BroadcastGradientArgs", "NoOp"}
"""Operations that read how large a tensor is, and none of its values."""
_GRADIENT = ("Grad", "Backprop")
"""What the names of operations contain that only gradients are made of."""


class Flow:
    """One walk over a traced step."""

    def __init__(self, traced: Traced, known: Mapping[int, State]) -> None:
        self._known = {**known, **{id(marker): SAME for marker in traced.sums}}
        self._couplings: dict[tuple[int, str], Coupling] = {}
        self._kept: dict[int, Kept] = {}
        self._undecided: dict[str, Any] = {}
        self._call: Any = None
        self._place = 0
        self._written: dict[str, State] = {}
        self._last_write: dict[str, int] = {}
        self._update: set[int] = {at for first, last in traced.updates.values() for at in range(first, last)}
        self.states: dict[int, State] = self._of_inputs(traced)
        self._tape = Tape()
        self._note_writes(traced)

    def _of_inputs(self, traced: Traced) -> dict[int, State]:
        variables = {id(source.handle): source.variable for source in traced.sources}
        found = {
            id(placeholder): State(VARIABLE, variable=variables[id(value)]) if id(value) in variables else SAME
            for value, placeholder in traced.graph.captures
        }
        found.update({id(each): rows(0) if each.shape.rank != 0 else SAME for each in traced.inputs})
        found.update({id(traced.examples): SIZE, id(traced.total): SAME})
        return found

    def _note_writes(self, traced: Traced) -> None:
        for at, operation in enumerate(traced.graph.get_operations()):
            if at in self._update or operation.type == "ReadVariableOp":
                continue
            for tensor in operation.inputs:
                state = self.states.get(id(tensor))
                if state is not None and state.kind == VARIABLE:
                    self._last_write[state.variable.name] = at

    # What rules use ----------------------------------------------------------------------------------------------

    def couple(self, operation: Any, what: str, by: Any) -> None:
        """Note that an operation makes the result of one example depend on others, and who uses that."""
        self._couplings.setdefault((id(operation), what), Coupling(operation, what, self._call or operation, by))

    @staticmethod
    def axes_of(tensor: Any, rank: int | None) -> list[int] | None:
        """The axes that a tensor names; None where they are not known."""
        axes = tf.get_static_value(tensor)
        if axes is None or rank is None:
            return None
        return [int(axis) % rank if rank else 0 for axis in np.atleast_1d(axes)]

    def run(self, graph: Any, states: Sequence[State], call: Any) -> list[State]:
        """The states of a function's results, given those of its arguments."""
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
        """Visit all operations of a step; those of its updates are not looked at."""
        for at, operation in enumerate(graph.get_operations()):
            self._place = at
            if at not in self._update:
                self._visit(operation)

    def _visit(self, operation: Any) -> None:
        outputs, kind = operation.outputs, operation.type
        if kind == "Placeholder":
            self.states.setdefault(id(outputs[0]), SAME)
            return
        states = [self.states.get(id(tensor), NO_CLAIM) for tensor in operation.inputs]
        if kind not in inner.RULES and all(state is SAME or state is NO_CLAIM for state in states):
            # Nothing of the batch goes in: most of an update and of a gradient is passed here.
            state = NO_CLAIM if NO_CLAIM in states else SAME
            self.states.update({id(tensor): self._known.get(id(tensor), state) for tensor in outputs})
            return
        found = self._found(operation, states)
        if isinstance(found, State):
            found = [found] * len(outputs)
        for tensor, state in zip(outputs, found, strict=True):
            # Functions are visited again with other arguments; markers and what a front knows stay.
            self.states[id(tensor)] = self._known.get(id(tensor), state)

    def _found(self, operation: Any, states: Sequence[State]) -> State | list[State]:
        kind = operation.type
        if kind == "IdentityN":
            return list(states)
        if states and states[0].kind == VARIABLE and kind not in ("ResourceGather", "ResourceGatherNd"):
            if kind == "ReadVariableOp":
                return self._read(states[0].variable, operation)
            if kind in inner.RULES:
                return _RULES[kind](self, operation, states)
            return self._write(operation, states)
        rule = _RULES.get(kind)
        if rule is not None:
            return rule(self, operation, states)
        if any(state.kind in (ROWS, ONE) for state in states) and not any(part in kind for part in _GRADIENT):
            self._undecided.setdefault(kind, operation)
        return SAME if states and all(state == SAME for state in states) else NO_CLAIM

    def _read(self, variable: Variable, operation: Any) -> State:
        after = self._place > self._last_write.get(variable.name, -1)
        return read(variable, after, self._written.get(variable.name), operation)

    def _write(self, operation: Any, states: Sequence[State]) -> State:
        variable, value = states[0].variable, states[-1]
        before = read(variable, False, self._written.get(variable.name), operation)
        adds = operation.type in ("AssignAddVariableOp", "AssignSubVariableOp")
        if operation.type != "AssignVariableOp" and not adds:
            self._written[variable.name] = NO_CLAIM
            return NO_CLAIM
        if not is_combined(variable, value, operation, adds):
            self._kept.setdefault(id(operation), Kept(variable, value, operation))
            value = NO_CLAIM
        self._written[variable.name] = added(self, operation, [before, value]) if adds else value
        return SAME

    # What was found ----------------------------------------------------------------------------------------------

    def found(self, traced: Traced) -> Found:
        """What the step does with its examples, less what a gradient does and what nothing is made of."""
        couplings = [each for each in self._couplings.values() if self._is_forward(each.operation, each.by)]
        if couplings:
            used = self._used(traced)
            couplings = [each for each in couplings if each.within.name in used]
        return Found(
            tuple(couplings),
            tuple(each for each in self._kept.values() if self._is_forward(each.state.origin)),
            tuple(
                Returned(index, state) for index, tensor in enumerate(traced.outputs)
                if not is_returned(state := self.states.get(id(tensor), NO_CLAIM), tensor.dtype)
                and self._is_forward(state.origin)
            ),
            tuple(each for each in self._undecided.values() if self._is_forward(each)),
        )

    def _is_forward(self, *operations: Any) -> bool:
        return not any(each is not None and self._tape.made(each) for each in operations)

    def _used(self, traced: Traced) -> set[str]:
        """The operations that gradients, written variables or results are made of."""
        ends = [gradient.values.op for gradient in traced.gradients]
        ends += [tensor.op for tensor in traced.outputs] + list(traced.graph.control_outputs)
        return set(reached_from(ends, lambda operation: () if operation.type in _SILENT else sources(operation)))


def follow(traced: Traced, known: Mapping[int, State]) -> Found:
    """Follow the batch axis through a traced step; `known` has states of tensors that are known otherwise, by id."""
    flow = Flow(traced, known)
    flow.over(traced.graph)
    return flow.found(traced)
