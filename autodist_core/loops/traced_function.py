"""A Python function that is captured for each kind of arguments, as marked functions and those of `run()` both are.

In: a Python function. Out: its captured steps, and their plan. `Function` and `OnEachReplica` call and run it, each in
its own way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from autodist_core.loops.calls.arguments import Arguments, Reader
from autodist_core.loops.engine import Engine
from autodist_core.loops.function_plan import planned_call
from autodist_core.loops.tracing import CapturedFunction, as_graph_function
from autodist_core.plan import Plan
from autodist_core.reports import say_inexact
from autodist_core.training import Steps


class TracedFunction(ABC):
    """A function over all replicas."""

    _more = "verify() compares with one device"
    """What a warning says that a user can call."""

    def __init__(
        self, engine: Engine, function: Callable[..., Any], whole: Collection[str] = (), split: bool = True
    ) -> None:
        self.python_function = getattr(function, "python_function", function)
        """The function as a user wrote it. One with the same code that refers to equal values may take its place."""
        self._name = str(getattr(self.python_function, "__name__", type(self.python_function).__name__))
        self._engine = engine
        self._reader = Reader(self.python_function, whole, split)
        self._steps: Steps[Arguments, CapturedFunction] = Steps(
            self._trace, engine.training, admit=engine.admit,
            added=self._note_added, name=self._name,
        )
        self._said = False
        """Whether it was said that the function gives other numbers than one device."""

    def _note_added(self, captured: CapturedFunction) -> None:
        self._engine.note_trace(self._name, self.python_function)
        if not self._said and self._engine.training.settings.replicas > 1:
            self._said = say_inexact(self._name, captured.notes, self._more)

    @abstractmethod
    def _trace(self, arguments: Arguments, specs: Sequence[tf.TensorSpec]) -> CapturedFunction:
        """Trace and capture the function for arguments of these specs."""

    @property
    def _converted(self) -> Callable[..., Any]:
        return as_graph_function(self.python_function)

    def _captured(self, arguments: Arguments) -> CapturedFunction:
        """The function, captured for arguments like these; nothing runs."""
        with self._engine.claimed(self._name):
            return self._steps.capture(arguments)

    def _planned(self, captured: CapturedFunction) -> Plan:
        return planned_call(self._engine, captured)
