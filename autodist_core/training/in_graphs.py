"""Report the variables that TensorFlow reads or writes without asking the variable: by functions and by pipelines.

In: the handles with which traced functions are called, and those that the functions of a tf.data pipeline keep. Out:
a call of a report for each. A function that was traced keeps the handles of its variables, and TensorFlow passes them
with each call. A pipeline gets them once, when its dataset is made, and reads them in threads of its own.

Also: calls of traced functions raise the error that Python code within them has raised, in place of TensorFlow's.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from autodist_core.seams.seam import Seam, owner
from autodist_core.seams.table import CALL_FUNCTION, CREATE_ITERATOR
from autodist_core.step.reaching import reached


@contextmanager
def reported(called: Callable[[Any], None], iterated: Callable[[Any, Any], None]) -> Iterator[None]:
    """Report every tensor with which a function is called, and every tensor that a pipeline keeps, with its iterator.

    >>> import tensorflow as tf
    >>> doubled, tensor, given = tf.function(lambda x: 2 * x), tf.constant(1.0), []
    >>> with reported(given.append, lambda handle, iterator: None):
    ...     result = doubled(tensor)
    >>> given[0] is tensor
    True
    """

    def reporting_call(call_function: Any) -> Any:
        def call(self: Any, name: Any, tensor_inputs: Any, num_outputs: Any) -> Any:
            for tensor in tensor_inputs:
                called(tensor)
            return call_function(self, name, tensor_inputs, num_outputs)

        return call

    def reporting_iterator(create_iterator: Any) -> Any:
        def create(self: Any, dataset: Any) -> Any:
            for tensor in kept_by(dataset):
                iterated(tensor, self)
            return create_iterator(self, dataset)

        return create

    with _wrapped(CALL_FUNCTION, reporting_call), _wrapped(CREATE_ITERATOR, reporting_iterator):
        yield


@contextmanager
def raised(failure: Callable[[Sequence[Any]], BaseException | None]) -> Iterator[None]:
    """Raise errors of Python code in traced functions as they are: TensorFlow makes an UnknownError of each.

    If a call of a traced function fails, `failure` gets the tensors with which it was called. It returns the error of
    Python code that made the call fail; None if there is no such error.

    >>> import tensorflow as tf
    >>> found = []
    >>> def fails():
    ...     found.append(ZeroDivisionError("too large"))
    ...     raise found[-1]
    >>> failing = tf.function(lambda: tf.py_function(fails, [], tf.float32))
    >>> with raised(lambda tensors: found.pop()):
    ...     failing()
    Traceback (most recent call last):
    ZeroDivisionError: too large
    """

    def raising_call(call_function: Any) -> Any:
        def call(self: Any, name: Any, tensor_inputs: Any, num_outputs: Any) -> Any:
            try:
                return call_function(self, name, tensor_inputs, num_outputs)
            except tf.errors.OpError:
                error = failure(tensor_inputs)
                if error is None:
                    raise
            raise error

        return call

    with _wrapped(CALL_FUNCTION, raising_call):
        yield


_wrapped_now: dict[Seam, list[Any]] = {}
"""TensorFlow's own functions that are wrapped at present, each with its wrappers, which may go in any order."""
_lock = threading.RLock()
"""For changing it. A thread may get to the end of a wrapper while it changes it, by Python's garbage collection."""


@contextmanager
def _wrapped(seam: Seam, wrapper: Callable[[Any], Any]) -> Iterator[None]:
    with _lock:
        _wrapped_now.setdefault(seam, [seam.get()]).append(wrapper)
        _put(seam)
    try:
        yield
    finally:
        with _lock:
            _wrapped_now[seam].remove(wrapper)
            _put(seam)
            if len(_wrapped_now[seam]) == 1:
                del _wrapped_now[seam]


def _put(seam: Seam) -> None:
    function, *wrappers = _wrapped_now[seam]
    for wrapper in wrappers:
        function = wrapper(function)
    setattr(owner(seam.owner), seam.name, function)


def kept_by(dataset: Any) -> Iterator[Any]:
    """The tensors that the functions of a dataset, and of the datasets that it is made of, have captured.

    >>> offset = tf.Variable(1, dtype=tf.int64)
    >>> dataset = tf.data.Dataset.range(3).map(lambda number: number + offset).batch(2)
    >>> [tensor is offset.handle for tensor in kept_by(dataset)]
    [True]
    """
    for part in reached([dataset], lambda part: part._inputs()):
        for function in part._functions():
            yield from function.function.captured_inputs
