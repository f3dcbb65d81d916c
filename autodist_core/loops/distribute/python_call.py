"""Call Python from a graph without keeping a thread of TensorFlow while Python works.

In: a Python function that runs functions of TensorFlow, and the tensors of its arguments. Out: its results, as tensors
of the graph. All functions of a process share one pool of threads, and `tf.py_function` keeps one of them until Python
returns: on a machine with one processor none would be left for what Python waits for. So one operation hands the
arguments to a thread of Python. A queue of TensorFlow, which keeps no thread, is waited for. Another operation gets
the results.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def python_call(function: Callable[..., Sequence[Any]], tensors: Sequence[Any], types: Sequence[Any]) -> list[Any]:
    """The results of a Python function, which have these types. An error of the function is the operation's error.

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
