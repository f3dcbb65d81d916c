"""Errors of `run()` inside somebody's trace: the user gets them as they are, and not as TensorFlow's UnknownError.

In: the error that a run has raised within an operation of a graph. Out: the same error, from the call of the traced
function that the graph belongs to. Such a call passes the handle of the strategy's `order`, by which it is recognised.
"""

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from autodist_core.training import raised


class Failures:
    """The error of the last run inside a trace, until the call of the traced function raises it.

    >>> import tensorflow as tf
    >>> order = tf.Variable(0)
    >>> failures = Failures(order.handle)
    >>> def fails(handle):
    ...     with failures.noted():
    ...         raise ZeroDivisionError("too large")
    >>> failures.raise_them()
    >>> tf.function(lambda: tf.py_function(fails, [order.handle], tf.float32))()
    Traceback (most recent call last):
    ZeroDivisionError: too large
    """

    def __init__(self, order: Any) -> None:
        self._order = order
        self._error: BaseException | None = None
        self._hook = ExitStack()
        self._raises = False
        self._runs = 0
        self._idle = threading.Condition()

    def raise_them(self) -> None:
        """Let calls of traced functions raise errors of runs from now on, as long as this object exists."""
        if not self._raises:
            self._raises, known = True, weakref.ref(self)

            def taken(tensors: Sequence[Any]) -> BaseException | None:
                failures = known()
                return None if failures is None else failures._taken(tensors)

            self._hook.enter_context(raised(taken))
            weakref.finalize(self, self._hook.close)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an error that the block raises, which is a run."""
        self._error = None
        with self._idle:
            self._runs += 1
        try:
            yield
        except BaseException as error:
            self._error = error
            raise
        finally:
            with self._idle:
                self._runs -= 1
                self._idle.notify_all()

    def _taken(self, tensors: Sequence[Any]) -> BaseException | None:
        if all(tensor is not self._order for tensor in tensors):
            return None
        # Another operation of the graph may have failed while a run was at work, for which TensorFlow does not wait.
        # A thread of TensorFlow itself may be a part of that run.
        if not isinstance(threading.current_thread(), threading._DummyThread):
            with self._idle:
                self._idle.wait_for(lambda: not self._runs)
        error, self._error = self._error, None
        return error
