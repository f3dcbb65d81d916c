"""One function on each replica: `run()`, called in Python or inside somebody's trace.

In: a function and its arguments. Out: what the function returns, as values of each replica. Inside a `tf.function`, the
call becomes an operation of that graph. The operation runs in this process: over several machines nothing of the user's
code runs elsewhere.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import tensorflow as tf

from autodist_core.capture.traversal import function_graphs
from autodist_core.errors import CaptureError
from autodist_core.loops.calls.arguments import Arguments
from autodist_core.loops.calls.outer_tapes import outside_trace, without_gradient
from autodist_core.loops.distribute.context import ReplicaContext
from autodist_core.loops.distribute.on_machines import drawn
from autodist_core.loops.distribute.values import filled_up, per_replica
from autodist_core.loops.traced_function import TracedFunction
from autodist_core.loops.tracing import CapturedFunction
from autodist_core.plan import Plan
from autodist_core.runtime.batch_slices import BatchSlicer
from autodist_core.step.op_types import LOOPS
from autodist_core.training import Entry


class OnEachReplica(TracedFunction):
    """A function that `run()` calls."""

    _more = "strategy.plan(fn, args) has all notes"

    def __init__(self, strategy: Any, function: Callable[..., Any]) -> None:
        context = partial(ReplicaContext, strategy)
        super().__init__(strategy.autodist.engine, function, context, replicas=len(strategy.extended.worker_devices))
        self._strategy = strategy

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run on each replica; the results are values of each replica."""
        parsed = self._reader.parse(args, kwargs)
        if not tf.executing_eagerly():
            return self._in_graph(parsed)
        with self._engine.running(self._name):
            captured, values = self._run(parsed, parsed.tensors)
        return captured.rebuild(list(map(per_replica, self._without_gradient(parsed, captured, values))))

    def plan(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Plan:
        """The table of what is done with each variable; nothing runs."""
        parsed = self._reader.parse(args, kwargs)
        filled = self._filled(parsed, parsed.tensors)
        return self._planned(self._captured(filled), filled.total)

    def verify(self, args: Sequence[Any], kwargs: dict[str, Any], steps: int) -> str:
        """The table of differences from one device, on which the function is one replica's, with whole batches."""
        parsed = self._reader.parse(args, kwargs)
        captured = self._captured(self._filled(parsed, parsed.tensors))
        whole = [
            self._whole(name, values) if each else values[0]
            for name, values, each in zip(parsed.names, parsed.tensors, parsed.each, strict=True)
        ]

        def applied(*tensors: Any) -> None:
            args, kwargs = parsed.with_tensors(tensors)
            with self._strategy.extended._alone():
                self.python_function(*args, **kwargs)

        alone, replicas = tf.function(applied), self._replicas
        return self._compared(captured, lambda: alone(*whole), lambda: self(args, kwargs), steps, (
            f"a replica's loss is its part of the global loss, so a mean over its own examples, or a term without "
            f"examples, counts up to {replicas} times here: tf.nn.compute_average_loss(losses, global_batch_size=...), "
            "tf.nn.scale_regularization_loss(loss)",
        ))

    def _whole(self, name: str, values: Sequence[Any]) -> Any:
        """The replicas' values as one batch."""
        if not values[0].shape.rank:
            raise ValueError(
                f"verify({self._name}, {name}=...): each replica has a number of its own, and one device has one. "
                "Pass values with examples, as the elements of a distributed dataset are."
            )
        return tf.concat(list(values), axis=0)

    def _trace(self, arguments: Arguments, specs: Sequence[tf.TensorSpec]) -> CapturedFunction:
        try:
            return super()._trace(arguments, specs)
        except RuntimeError as error:
            if "Must not nest tf.distribute.Strategy scopes" in str(error):
                raise CaptureError(
                    f"{self._name} uses a Keras optimizer that was made outside this strategy's scope(), and that "
                    "belongs to another strategy. Make the optimizer inside: `with strategy.scope(): optimizer = ...`."
                ) from error
            raise

    def _run(
        self, parsed: Arguments, tensors: Sequence[Sequence[Any]], outer: Sequence[Any] = (), values: Sequence[Any] = ()
    ) -> tuple[CapturedFunction, list[list[Any]]]:
        """Run once; for each result, the tensors of all replicas. `values` are those of the `outer` tensors."""
        arguments = self._filled(parsed, tensors)
        self._require_same(self._steps.prepare(arguments).outer, outer)
        arrays = (*drawn(arguments.arrays, tensors), *values)
        with self._explained(arguments):
            captured, outputs = self._steps.run(replace(arguments, arrays=arrays))
        replicas, count = self._replicas, len(captured.item.outputs)
        present = len(outputs) // count if count else 0
        # Replicas that do not wait for each other: the first replica's last result stands for the others.
        missing = len(BatchSlicer.bounds(arguments.arrays, arguments.total, replicas)) - present
        found = []
        for index, spec in enumerate(captured.results):
            values = list(outputs[index * present : (index + 1) * present])
            idle = captured.idle[index]
            otherwise = None if idle is None else outputs[idle * present]
            found.append(filled_up(values + [values[-1]] * missing, replicas, spec, otherwise))
        return captured, found

    def _require_same(self, found: Sequence[Any], outer: Sequence[Any]) -> None:
        """Raise a CaptureError if the function uses tensors of a trace other than the one in which it is called."""
        others = [tensor for tensor in found if all(tensor is not each for each in outer)]
        if others or len(found) != len(outer):
            names = ", ".join(repr(tensor.name) for tensor in others or outer)
            raise CaptureError(
                f"{self._name} uses {names} of a traced function in which it is not called now. Pass tensors to it as "
                "arguments: run(fn, args=(...))."
            )

    def _filled(self, parsed: Arguments, tensors: Sequence[Sequence[Any]]) -> Arguments:
        arguments = self._reader.fill(parsed, tensors)
        # Without values of each replica, every replica runs, as with one example each.
        return arguments if any(parsed.each) else replace(arguments, total=self._replicas)

    def _in_graph(self, parsed: Arguments) -> Any:
        """The call as an operation of the graph that is being traced."""
        graph, replicas = tf.compat.v1.get_default_graph(), self._replicas
        with outside_trace(), self._engine.running(self._name):
            captured = self._steps.prepare(replace(parsed, total=replicas))
        around = list(function_graphs(graph))
        self._require_same(captured.outer, [each for each in captured.outer if each.graph in around])
        self._strategy.failures.raise_them()
        outside = ReadElsewhere(graph, captured.entries)
        sizes = [len(values) for values in parsed.tensors]

        def call(*given: Any) -> list[Any]:
            tensors = iter(given)
            with self._strategy.failures.noted(), self._engine.running(self._name):
                filled = [[next(tensors) for _ in range(size)] for size in sizes]
                _, found = self._run(parsed, filled, captured.outer, list(islice(tensors, len(captured.outer))))
                self._engine.show(outside.entries)
            return [tensor for values in found for tensor in values]

        # The handles order this operation among those that read or write the same variables, and among other runs.
        handles = [self._strategy.order.handle, *(entry.handle for entry in captured.entries)]
        flat = [*(tensor for values in parsed.tensors for tensor in values), *captured.outer, *handles]
        made = python_call(call, flat, [spec.dtype for spec in captured.results for _ in range(replicas)])
        results = []
        for index, spec in enumerate(captured.results):
            results.append(list(made[index * replicas : (index + 1) * replicas]))
            for value in results[-1]:
                value.set_shape(spec.shape)
        return captured.rebuild(list(map(per_replica, self._without_gradient(parsed, captured, results))))

    def _without_gradient(self, parsed: Arguments, captured: CapturedFunction, values: Any) -> Any:
        """The tensors of all replicas for each result, which a tape around `run()` cannot differentiate."""
        given = [tensor for tensors in parsed.tensors for tensor in tensors]
        made_of = [*(entry.tf_variable for entry in captured.entries), *given, *captured.outer]
        return without_gradient(self._name, values, made_of)


_RUN = {"EagerPyFunc"}


class ReadElsewhere:
    """The variables that operations besides `run()` take. They are found at the first run, when the trace is done.

    >>> import tensorflow as tf
    >>> from autodist_core.loops.variables import Variables
    >>> read, other = tf.Variable(1.0, name="read"), tf.Variable(1.0, name="other")
    >>> step = tf.function(lambda: 2.0 * read).get_concrete_function()
    >>> known = Variables()
    >>> [entry.spec.name for entry in ReadElsewhere(step.graph, [known.entry(read), known.entry(other)]).entries]
    ['read']
    """

    def __init__(self, graph: Any, entries: Sequence[Entry]) -> None:
        self._graph = weakref.ref(graph)
        self._entries = entries

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The variables. If the graph is gone, all of them."""
        graph = self._graph()
        if graph is None:
            return tuple(self._entries)
        return tuple(entry for entry in self._entries if _is_read(graph, entry.handle))


def _is_read(graph: Any, handle: Any) -> bool:
    """Whether an operation of the graph, or of a graph around it, takes a handle besides those that lead to `run()`."""
    known = {id(handle)}
    for depth, each in reversed(list(enumerate(function_graphs(graph)))):
        for value, placeholder in each.captures:
            if id(value) not in known:
                continue
            known.add(id(placeholder))
            takers = list(placeholder.consumers())
            if any(taker.type not in (_RUN | {*LOOPS} if depth else _RUN) for taker in takers):
                return True
            if sum(taker.type in LOOPS for taker in takers) > 1:
                return True
    return False


def python_call(function: Callable[..., Sequence[Any]], tensors: Sequence[Any], types: Sequence[Any]) -> list[Any]:
    """The results of a Python function, which have these types. An error of the function is the operation's error.

    All functions of a process share one pool of threads, and `tf.py_function` keeps one of them until Python returns:
    on a machine with one processor none would be left for what Python waits for. So one operation hands the arguments
    to a thread of Python. A queue of TensorFlow, which keeps no thread, is waited for. Another operation gets the
    results.

    Both operations get all tensors, so that TensorFlow orders them by the resources that are among these.

    >>> double = tf.function(lambda x: 2 * x)
    >>> of_python = tf.function(lambda x: python_call(lambda x: [double(x)], [x], [tf.int32]))
    >>> [int(result) for result in of_python(tf.constant(3))]
    [6]
    """
    with tf.device("/device:CPU:0"):
        number, done = tf.py_function(lambda *given: _begin(function, given), tensors, [tf.int64, tf.resource])
        (number,) = tf.raw_ops.QueueDequeueV2(handle=done, component_types=[tf.int64])
    results = tf.py_function(_end, [number, *tensors], types)
    return list(results) if types else []


class _Worker:
    """A thread of Python, which calls one function after the other."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.done = tf.raw_ops.FIFOQueueV2(component_types=[tf.int64], shared_name=f"autodist/calls/{number}")
        """Has the worker's number when a call is done."""
        self.asked: queue.SimpleQueue[Callable[[], Sequence[Any]]] = queue.SimpleQueue()
        self.results: Sequence[Any] = ()
        self.error: BaseException | None = None
        threading.Thread(target=self._work, name=f"autodist calls {number}", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                self.results = self.asked.get()()
            except BaseException as error:
                self.error = error
            tf.raw_ops.QueueEnqueueV2(handle=self.done, components=[tf.constant(self.number, tf.int64)])


_workers: list[_Worker] = []
_idle: list[_Worker] = []
_lock = threading.Lock()


def _begin(function: Callable[..., Sequence[Any]], given: Sequence[Any]) -> tuple[int, Any]:
    with _lock:
        if not _idle:
            _workers.append(_Worker(len(_workers)))
            _idle.append(_workers[-1])
        worker = _idle.pop()
    worker.asked.put(lambda: function(*given))
    return worker.number, worker.done


def _end(number: Any, *_: Any) -> Sequence[Any]:
    """What the worker's function has returned, or the error that it has raised."""
    worker = _workers[int(number)]
    (results, error), worker.results, worker.error = (worker.results, worker.error), (), None
    with _lock:
        _idle.append(worker)
    if error is not None:
        raise error
    return results
