"""Report the variables that TensorFlow reads or writes without asking the variable: by functions and by pipelines.

In: the handles with which traced functions are called, and those that the functions of a tf.data pipeline keep. Out:
a call of a report for each. A function that was traced keeps the handles of its variables, and TensorFlow passes them
with each call. A pipeline gets them once, when its dataset is made, and reads them in threads of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autodist_core.seams.seam import Seam, owner
from autodist_core.seams.table import CALL_FUNCTION, CREATE_ITERATOR


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
    call_function, create_iterator = CALL_FUNCTION.get(), CREATE_ITERATOR.get()

    def reporting_call(self: Any, name: Any, tensor_inputs: Any, num_outputs: Any) -> Any:
        for tensor in tensor_inputs:
            called(tensor)
        return call_function(self, name, tensor_inputs, num_outputs)

    def reporting_iterator(self: Any, dataset: Any) -> Any:
        for tensor in _kept_by(dataset):
            iterated(tensor, self)
        return create_iterator(self, dataset)

    with _replaced(CALL_FUNCTION, reporting_call), _replaced(CREATE_ITERATOR, reporting_iterator):
        yield


@contextmanager
def _replaced(seam: Seam, function: Any) -> Iterator[None]:
    before = seam.get()
    setattr(owner(seam.owner), seam.name, function)
    try:
        yield
    finally:
        setattr(owner(seam.owner), seam.name, before)


def _kept_by(dataset: Any) -> Iterator[Any]:
    """The tensors that the functions of a dataset, and of the datasets that it is made of, have captured."""
    waiting, known = [dataset], set()
    while waiting:
        part = waiting.pop()
        if id(part) not in known:
            known.add(id(part))
            waiting.extend(part._inputs())
            for function in part._functions():
                yield from function.function.captured_inputs
