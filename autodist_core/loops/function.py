"""One marked function: called like the Python function, it runs over all replicas.

In: the arguments of a call. Out: what the function returns, for the whole batch. `AutoDist.function` makes a
`Function`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial, update_wrapper
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.loops.arguments import Arguments, Reader
from autodist_core.loops.engine import Engine
from autodist_core.loops.graph_mode import drawn
from autodist_core.loops.tracing import CapturedFunction, as_graph_function, trace_function
from autodist_core.training import Steps


class Function:
    """A Python function over all replicas. `AutoDist.function` has an example."""

    def __init__(self, engine: Engine, function: Callable[..., Any], whole: Collection[str]) -> None:
        python = getattr(function, "python_function", function)
        update_wrapper(self, python)
        self.python_function = python
        self._name = str(getattr(python, "__name__", type(python).__name__))
        self._engine = engine
        self._reader = Reader(python, whole)
        self._converted = as_graph_function(python)
        self._steps: Steps[Arguments, CapturedFunction] = Steps(self._capture, engine.training)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on a batch over all replicas; return its results for the whole batch."""
        arguments = self._reader.read(*drawn(args, kwargs))
        with self._engine.running(self._name):
            return tf.nest.map_structure(_as_tensor, self._steps(arguments))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else partial(self, instance)

    def _capture(self, arguments: Arguments, specs: Any) -> CapturedFunction:
        return trace_function(self._converted, arguments.parsed, specs, self._engine.variables)


def _as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray | np.generic | bytes) else value
