"""One marked function: called like the Python function, it runs over all replicas.

In: the arguments of a call. Out: what the function returns, for the whole batch. `AutoDist.function` makes a
`Function`.
"""

from collections.abc import Callable, Collection
from copy import copy
from functools import update_wrapper
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.loops.calls.as_written import as_written
from autodist_core.loops.calls.graph_mode import drawn
from autodist_core.loops.calls.outer_tapes import without_gradient
from autodist_core.loops.engine import Engine
from autodist_core.loops.replica import OfWholeBatch
from autodist_core.loops.traced_function import TracedFunction
from autodist_core.loops.tracing import CapturedFunction
from autodist_core.plan import Plan
from autodist_core.reports.comparison import require_steps


class Function(TracedFunction):
    """A Python function over all replicas. `AutoDist.function` makes it.

    >>> from autodist_core import AutoDist
    >>> with AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}) as distributed:
    ...     square = distributed.function(lambda x: x**2)
    ...     print(type(square).__name__, square(tf.constant([1.0, 2.0, 3.0])).numpy().tolist())
    Function [1.0, 4.0, 9.0]
    >>> class Scale:
    ...     @distributed.function
    ...     def times(self, x):
    ...         return 3 * x
    >>> Scale().times(tf.constant([1.0, 2.0])).numpy().tolist(), Scale().times.plan(tf.ones([2])).splitlines()[1]
    ([3.0, 6.0], '  replica localhost:CPU:0')
    >>> distributed.close()
    """

    _bound: tuple[Any, ...] = ()
    """The object of which it is a method."""

    def __init__(self, engine: Engine, function: Callable[..., Any], whole: Collection[str]) -> None:
        super().__init__(engine, function, OfWholeBatch, whole)
        update_wrapper(self, self.python_function, updated=())  # an object's attributes, as a model's, are not ours

    @as_written
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on a batch over all replicas; return its results for the whole batch."""
        return self._run((*self._bound, *args), kwargs)

    def _run(self, args: Any, kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            self._engine.refuse_within_trace(self._name)
        with drawn(args, kwargs) as batches:
            arguments = self._reader.read(batches.args, batches.kwargs)
            with self._engine.running(self._name), self._explained(arguments):
                if batches.batches:
                    # Whatever refuses the function does so before the batches count as used.
                    self._steps.prepare(arguments)
                    batches.used = True
                captured, outputs = self._steps.run(arguments)
            results = tf.nest.map_structure(_as_tensor, captured.rebuild(outputs))
            given = [leaf for leaf in tf.nest.flatten((batches.args, batches.kwargs)) if tf.is_tensor(leaf)]
            return without_gradient(self._name, results, [*(each.tf_variable for each in captured.entries), *given])

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The table of what is done with each variable, for a call with these arguments; nothing runs.

        Without arguments, the first captured step counts. The plan is a string, and a notebook shows it as a table.

        >>> from autodist_core import AutoDist
        >>> weight = tf.Variable(0.0, name="weight")
        >>> with AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}, "PS") as distributed:
        ...     @distributed.function
        ...     def train_step(x):
        ...         with tf.GradientTape() as tape:
        ...             loss = tf.reduce_mean((x * weight - 1) ** 2)
        ...         weight.assign_sub(0.1 * tape.gradient(loss, weight))
        ...     print(train_step.plan(tf.ones([4])).splitlines()[3])
          weight : f32[]  in shared memory  4 B  0 B/step
        """
        return self._planned(*self._captured_for((*self._bound, *args), kwargs))

    def verify(self, *args: Any, steps: int = 3, **kwargs: Any) -> str:
        """Run a few steps on one device and over all replicas, from the same state, and compare every variable.

        Every step takes these arguments. Afterwards the variables have the state that they had before. If variables
        differ by more than rounding and the plan has no reason, a ValueError names these variables.

        >>> from autodist_core import AutoDist
        >>> weight = tf.Variable(0.0, name="weight")
        >>> with AutoDist({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}, "PS") as distributed:
        ...     @distributed.function
        ...     def train_step(x):
        ...         with tf.GradientTape() as tape:
        ...             loss = tf.reduce_mean((x * weight - 1) ** 2)
        ...         weight.assign_sub(0.1 * tape.gradient(loss, weight))
        ...     print(train_step.verify(tf.ones([4]), steps=2).splitlines()[-1].partition(";")[0])
        verdict: equal to one device, up to rounding, in the 1 variable of the table
        """
        require_steps(steps)
        with drawn((*self._bound, *args), kwargs) as batches:
            (captured, _), given = self._captured_for(batches.args, batches.kwargs), batches

            def applied(*args: Any, **kwargs: Any) -> None:
                # What the function returns is not compared, and may be what no tf.function returns: an operation.
                self.python_function(*args, **kwargs)

            alone = tf.function(applied)
            return self._compared(
                captured, lambda: alone(*given.args, **given.kwargs), lambda: self._run(given.args, given.kwargs), steps
            )

    def _captured_for(self, args: Any, kwargs: Any) -> tuple[CapturedFunction, int]:
        """The captured function, and the number of examples of these arguments; 0 if there are none."""
        if not args and not kwargs and self._steps.captured is not None:
            return self._steps.captured, 0
        with drawn(args, kwargs) as batches:
            arguments = self._reader.read(batches.args, batches.kwargs)
            return self._captured(arguments), arguments.total

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(tf.types.experimental.PolymorphicFunction, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(
            f"{self._name} is a function of AutoDist, and has no {name}, as a tf.function has: it is a part of a graph "
            f"of all replicas. For the function of one device, as to save it, write tf.function({self._name}."
            "python_function)."
        )

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        bound = copy(self)
        bound._bound = (instance,)
        return bound


def _as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray | np.generic | bytes) else value
