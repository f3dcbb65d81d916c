"""Watch TensorFlow variables: tell a state before somebody sees the value of one of its variables.

In: the entries of variables, from `state.py`. Out: a call of `TrainingState.looked_at` for each look. The variable
*instance* gets a subclass of its class with other properties `handle` and `_handle`: TensorFlow's Python code asks for
the first one before it computes with a variable, and its code in C++ for the second one. What TensorFlow has traced
keeps the handle instead; `in_graphs.py` reports it. When the last watcher has gone, the instance gets its own class
back.

>>> class Recording(Watcher):
...     seen = set()
...     def looked_at(self, entry):
...         self.seen.add(entry.spec.name)
>>> variable = tf.Variable([1.0, 2.0])
>>> own, subscription = type(variable), Subscription(Recording(), Entry(Variable("w", (2,), "float32"), variable))
>>> watch(subscription)
>>> float(tf.reduce_sum(variable)), Recording.seen
(3.0, {'w'})
>>> unwatch(subscription)
>>> type(variable) is own
True
"""

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
import tensorflow as tf

from autodist_core.interrupts import never_interrupted
from autodist_core.seams.table import HANDLE_IS_READ, TAPE_RECORDS
from autodist_core.step.graph_item import Variable
from autodist_core.training.entries import Entry
from autodist_core.training.in_graphs import kept_by, reported


class Watcher(Protocol):
    """What is told of looks: a `TrainingState`."""

    def looked_at(self, entry: Entry) -> None:
        """Give the variable its current value; somebody is about to see it."""

    def copy_of(self, entry: Entry, rows: np.ndarray | None = None) -> np.ndarray | None:
        """A copy of the variable's value, or of some of its rows, without a look; None if there must be one."""

    def takes(self, entry: Entry, value: Any) -> bool:
        """Take a value that somebody assigns, without giving the variable memory; False if the variable gets it."""

    def covered(self, entry: Entry) -> None:
        """Note that another watcher is told of looks at the variable from now on."""

    def give_way(self, entry: Entry) -> None:
        """Give the variable its current value; another watcher is about to use it and may change it."""

    def failed(self, failure: BaseException) -> None:
        """Raise an error later. It came up in a look, where it could not be raised."""

    def iterated(self, entry: Entry, iterator: Any) -> None:
        """Keep the variable current as long as the iterator exists; its pipeline reads the variable at any time."""


@dataclass(frozen=True, eq=False)
class Subscription:
    """Ties a watched variable to the watcher that is told of looks."""

    watcher: Watcher
    entry: Entry


class _Subscriptions(list[Subscription]):
    """Those of one variable, which has them as an attribute: they and what they keep go with the variable."""


_subscriptions = WeakValueDictionary[int, _Subscriptions]()
"""The subscriptions of each watched variable, by the identity of its handle. The last one counts; the others wait."""
_hooks = ExitStack()
"""What `in_graphs.py` has put in place while a variable is watched."""
_lock = threading.Lock()
"""For changing `_subscriptions` and `_hooks`. A watcher that is called while a thread holds it only takes a note."""


def watch(subscription: Subscription) -> None:
    """Tell the subscription's watcher of every look at its variable, until `unwatch`. The module has an example.

    Two models may share a variable. The watcher of the other model is told of a look first: the variable then has that
    model's value, and that model will notice the changes of this one. It asks for `watch_first` before its next step.
    """
    _require_looks_are_seen()
    _watch(subscription)


def _watch(subscription: Subscription) -> None:
    entry = subscription.entry
    stop_waiting(entry)
    _looked_at(entry.handle)
    with _lock:
        if not _subscriptions:
            _hooks.close()  # the last variables may have gone with their subscriptions
            _hooks.enter_context(reported(_looked_at, _iterated))
        if id(entry.handle) not in _subscriptions:
            own: Any = type(entry.tf_variable)
            entry.tf_variable.__class__ = _watched(own)
            vars(entry.tf_variable)["subscriptions"] = _subscriptions[id(entry.handle)] = _Subscriptions()
        _put_last(subscription)


def watch_first(subscription: Subscription) -> None:
    """Let a subscription count again, after another one of the variable was put behind it.

    The watcher that counted gives the variable its current value first. It may refuse this.

    >>> class Telling(Watcher):
    ...     def give_way(self, entry):
    ...         print("another one uses", entry.spec.name)
    >>> entry = Entry(Variable("w", (2,), "float32"), tf.Variable([1.0, 2.0]))
    >>> first, second = Subscription(Telling(), entry), Subscription(Telling(), entry)
    >>> watch(first)
    >>> watch(second)
    >>> watch_first(first)
    another one uses w
    >>> unwatch(first)
    >>> unwatch(second)
    """
    last = _subscriptions[id(subscription.entry.handle)][-1]
    if last is not subscription:
        last.watcher.give_way(last.entry)
        with _lock:
            _subscriptions[id(subscription.entry.handle)].remove(subscription)
            _put_last(subscription)


def stop_waiting(entry: Entry) -> None:
    """Take the subscriptions away that wait for the variable's value, since it has one, or another watcher makes it.

    >>> stop_waiting(Entry(Variable("w", (2,), "float32"), tf.Variable([1.0, 2.0])))
    """
    for each in list(_subscriptions.get(id(entry.handle), ())):
        if getattr(each.watcher, "waits", False):
            unwatch(each)


def _put_last(subscription: Subscription) -> None:
    subscriptions = _subscriptions[id(subscription.entry.handle)]
    for last in subscriptions[-1:]:
        last.watcher.covered(last.entry)
    subscriptions.append(subscription)


def unwatch(subscription: Subscription) -> None:
    """Take a subscription away. Without subscriptions, a variable is an instance of its own class again."""
    entry = subscription.entry
    with _lock:
        subscriptions = _subscriptions[id(entry.handle)]
        subscriptions.remove(subscription)
        if not subscriptions:
            entry.tf_variable.__class__ = type(entry.tf_variable).__base__
            del _subscriptions[id(entry.handle)], vars(entry.tf_variable)["subscriptions"]
        if not _subscriptions:
            _hooks.close()


def watched_variable(handle: Any) -> Any:
    """The watched variable with this handle; None if no variable with it is watched.

    >>> watched_variable(tf.Variable(1.0).handle) is None
    True
    """
    subscriptions = _subscriptions.get(id(handle))
    return subscriptions[-1].entry.tf_variable if subscriptions else None


def _looked_at(handle: Any) -> None:
    """Tell the watcher of the variable with this handle. While a graph is built, nobody sees a value."""
    for subscription in _subscriptions.get(id(handle), ())[-1:]:
        if tf.executing_eagerly():
            subscription.watcher.looked_at(subscription.entry)


@never_interrupted
def _looked_at_by_c(handle: Any) -> None:
    """The same, without an error: the process would end if code in C++ asked for a handle and got an error."""
    try:
        _looked_at(handle)
    except BaseException as failure:
        for subscription in _subscriptions.get(id(handle), ())[-1:]:
            subscription.watcher.failed(failure)


def _iterated(handle: Any, iterator: Any) -> None:
    """Tell the watcher of the variable with this handle that the pipeline of an iterator reads it."""
    for subscription in _subscriptions.get(id(handle), ())[-1:]:
        subscription.watcher.iterated(subscription.entry, iterator)


def read_by_pipeline(dataset: Any, reader: Any) -> None:
    """Keep the watched variables that a dataset reads current as long as the reader exists.

    A traced function that takes the dataset as an argument makes its iterator inside, where nothing is reported.

    >>> read_by_pipeline(tf.data.Dataset.range(3), object())
    """
    for handle in kept_by(dataset):
        _iterated(handle, reader)


@cache
def _watched(base: Any) -> Any:
    """A subclass of a variable's class, whose `handle` and `_handle` tell of each look."""

    def handle(self: Any) -> Any:
        _looked_at(vars(self)["_handle"])
        return vars(self)["_handle"]

    @never_interrupted
    def handle_for_c(self: Any) -> Any:
        _looked_at_by_c(vars(self)["_handle"])
        return vars(self)["_handle"]

    def last_of(self: Any) -> list[Subscription]:
        return _subscriptions.get(id(vars(self)["_handle"]), [])[-1:] if tf.executing_eagerly() else []

    # Who takes a copy, such as the writer of a file, or assigns a value, needs no memory of the variable itself.
    def numpy(self: Any) -> Any:
        found = [each.watcher.copy_of(each.entry) for each in last_of(self)]
        return base.numpy(self) if not found or found[0] is None else found[0]

    def sparse_read(self: Any, indices: Any, name: str | None = None) -> Any:
        # A tape needs TensorFlow's own read, to which the gradient goes.
        wanted, rows = np.asarray(indices) if last_of(self) and not TAPE_RECORDS.get()() else np.zeros(0), None
        if wanted.dtype.kind in "iu" and ((wanted >= 0) & (wanted < self.shape[0])).all():  # else TensorFlow objects
            rows = next((each.watcher.copy_of(each.entry, wanted) for each in last_of(self)), None)
        return base.sparse_read(self, indices, name) if rows is None else tf.constant(rows)

    def assign(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if any(each.watcher.takes(each.entry, value) for each in last_of(self)):
            return self
        return base.assign(self, value, *args, **kwargs)

    return type(base)(base.__name__, (base,), {
        "handle": property(handle), "_handle": property(handle_for_c), "numpy": numpy, "assign": assign,
        "sparse_read": sparse_read,
        "device": property(lambda self: vars(self)["_handle"].device),  # an optimizer asks for it, and for no value
        "__module__": base.__module__, "__qualname__": base.__qualname__,
    })


@cache
def _require_looks_are_seen() -> None:
    """Raise a SeamError if TensorFlow computes with a variable without asking for its handle."""
    seen: list[Entry] = []
    watcher: Any = SimpleNamespace(looked_at=seen.append)
    with tf.init_scope(), tf.device("CPU:0"):
        variable = tf.Variable(1.0)
        subscription = Subscription(watcher, Entry(Variable("tried", (), "float32"), variable))
        _watch(subscription)
        try:
            for how in (variable.read_value, lambda: tf.raw_ops.Neg(x=variable)):
                seen.clear()
                how()
                if not seen:
                    raise HANDLE_IS_READ.error("it did not")
        finally:
            unwatch(subscription)
