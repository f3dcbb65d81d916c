"""A Python function that is captured for each kind of arguments, as marked functions and those of `run()` both are.

In: a Python function. Out: its captured steps, their plan, and how they compare with one device. `Function` and
`OnEachReplica` call and run it, each in its own way.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import tensorflow as tf

from autodist_core.errors import CaptureError
from autodist_core.loops.calls.arguments import Arguments, Reader
from autodist_core.loops.engine import Engine
from autodist_core.loops.inside import Inside
from autodist_core.loops.nested_markers import ROWS, SUM
from autodist_core.loops.tracing import CapturedFunction, trace_function
from autodist_core.plan import INEXACT, UNDECIDED, Plan
from autodist_core.reports import step_plan
from autodist_core.reports.comparison import Explanation, compare
from autodist_core.reports.rounding import coarsest_type
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.strategy.written import written
from autodist_core.training import Steps, raise_in_words

_LATER = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
"""Kinds of functions that compute after the call."""
_UNEQUAL = {
    SUM: ("all_reduce", "Reduce the value along its examples first: tf.reduce_sum(value, axis=0)."),
    ROWS: ("all_gather", "Only the size of the axis along which it gathers may differ."),
}
"""For each marker, the method that makes it, and what to do if it received values of different shapes."""


def _require_computed_when_called(function: Any, name: str) -> None:
    if any(is_such(each) for is_such in _LATER for each in (function, type(function).__call__)):
        raise CaptureError(
            f"{name} is an `async def` or a generator: it computes after the call, and the function that is marked, or "
            "that run() gets, is traced during the call. Write a plain `def`, and return a list or a tuple of tensors."
        )


class TracedFunction:
    """A function over all replicas; within a `context` it is traced.

    With a number of `replicas`, it is one that `run()` calls (see `trace_function`).
    """

    _more = "verify() compares with one device"
    """What a warning says that a user can call."""

    def __init__(
        self, engine: Engine, function: Callable[..., Any], context: Callable[[Inside], AbstractContextManager[Any]],
        whole: Collection[str] = (), replicas: int = 0,
    ) -> None:
        self.python_function = getattr(function, "python_function", function)
        """The function as a user wrote it. One with the same code that refers to equal values may take its place."""
        self._name = str(getattr(self.python_function, "__name__", type(self.python_function).__name__))
        _require_computed_when_called(self.python_function, self._name)
        self._engine, self._context, self._replicas = engine, context, replicas
        self._reader = Reader(self.python_function, whole, split=not replicas)
        self._steps = self._new_steps()
        self._said = False
        """Whether it was said that the function gives other numbers than one device."""

    def _new_steps(self) -> Steps[Arguments, CapturedFunction]:
        engine = self._engine
        return Steps(self._trace, engine.training, admit=engine.admit, added=self._note_added, name=self._name)

    def _note_added(self, captured: CapturedFunction) -> None:
        self._engine.note_trace(self._name, self.python_function)
        if not self._said and self._engine.training.settings.replicas > 1:
            # `verify` compares variables.
            more = self._more if any(note.startswith((INEXACT, UNDECIDED)) for note in captured.notes) else ""
            self._said = step_plan.say_inexact(self._name, (*captured.notes, *captured.reported), more)

    def _trace(self, arguments: Arguments, specs: Sequence[tf.TensorSpec]) -> CapturedFunction:
        """Trace and capture the function for arguments of these specs."""
        return trace_function(
            self.python_function, arguments, specs, self._engine.variables, self._context, self._replicas,
            self._engine.training.draws_as_one,
        )

    @contextmanager
    def _explained(self, arguments: Arguments) -> Iterator[None]:
        """Say which operation of the captured function failed, or which method got values of other shapes on replicas.
        """
        try:
            yield
        except tf.errors.OpError as error:
            for marker, (method, remedy) in _UNEQUAL.items():
                if marker in str(error):
                    raise CaptureError(
                        f"{self._name}: {method} received values of different shapes on the replicas, which may have "
                        f"different numbers of examples. {remedy} TensorFlow says: {error}"
                    ) from error
            captured = self._steps.found(arguments)
            if captured is None:
                raise
            raise_in_words(error, captured.lines, lambda _: self._name, self._engine.training, captured.notes)

    def _captured(self, arguments: Arguments) -> CapturedFunction:
        """The function, captured for arguments like these; nothing runs."""
        with self._engine.claimed(self._name):
            return self._steps.capture(arguments)

    def _planned(self, captured: CapturedFunction, examples: int) -> Plan:
        """The table of what is done with each variable, and the notes.

        `examples` is the number of examples of the batch, 0 if it is not known.
        """

        def more(strategy: CompiledStrategy) -> Iterator[str]:
            if len(strategy.replicas) > 1:
                yield from (*captured.notes, *captured.reported)
                yield from step_plan.drawing_notes(captured.item)

        engine, settings, state = self._engine, self._engine.training.settings, self._engine.training.state
        item = captured.item if state is None else engine.admit(state, captured.item)
        placed = engine.training.placed_with(item)
        strategy = engine.training.compile_strategy(placed)
        assumed = "" if item.gradients else "the function applies no gradients: every replica has a copy"
        if not item.gradients and item is not captured.item:
            assumed = "the function assigns variables that other functions train: their owners do this"
        with captured.lines.told():
            return step_plan.planned(
                item, strategy, settings.share_memory, more, written(settings.strategy), assumed, placed, examples,
                settings.resource_spec,
            )

    def _compared(
        self, captured: CapturedFunction, alone: Callable[[], object], together: Callable[[], object], steps: int,
        possible: Collection[str] = (),
    ) -> str:
        """Run some steps on one device and over all replicas, and compare the variables; they get their state back.

        `possible` are reasons for other variables, besides those of the plan.
        """
        training = self._engine.training
        compressors = training.compressor_state()

        explanations: list[Explanation] = []

        def over_replicas() -> None:
            with self._drawing_as_one(captured):
                for _ in range(steps):
                    together()
                found = self._explanation(self._steps.captured or captured)
                explanations.append(replace(found, possible=(*found.possible, *possible)))

        try:
            return compare(
                captured.entries, lambda: [alone() for _ in range(steps)], over_replicas, steps, explanations.pop,
                lambda: coarsest_type(captured.item),
            )
        finally:
            training.set_compressor_state(compressors)

    @contextmanager
    def _drawing_as_one(self, captured: CapturedFunction) -> Iterator[None]:
        """Let the replicas draw one device's random numbers in this block, as far as they can."""
        training = self._engine.training
        strategy = training.compile_strategy(training.placed_with(captured.item))
        if not step_plan.can_draw_as_one(captured.item, strategy, training.settings.share_memory):
            yield
            return
        kept, self._steps = self._steps, self._new_steps()
        training.draws_as_one = True
        try:
            yield
        finally:
            training.draws_as_one, self._steps = False, kept

    def _explanation(self, captured: CapturedFunction) -> Explanation:
        """The notes that explain other variables than one device's."""
        training = self._engine.training
        placed = training.placed_with(captured.item)
        strategy = training.compile_strategy(placed)
        anew = step_plan.drawn_anew(captured.item)
        if len(strategy.replicas) == 1:
            return Explanation(tuple(anew), (), item=captured.item)
        own = step_plan.inexact_notes(placed, strategy, training.settings.share_memory)
        certain = [note for note in captured.notes if note.startswith(INEXACT)]
        # Replicas' random numbers are no rounding, and no defect.
        return Explanation(
            (*own, *certain, *step_plan.drawing_notes(captured.item), *anew),
            tuple(note for note in captured.notes if note not in certain), captured.reported, captured.item,
        )
