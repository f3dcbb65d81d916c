"""Watch Keras variables: tell a state before somebody sees the value of one of its variables.

In: the variables of a model, from `state.py`. Out: a call of `State.looked_at` for each look. The variable *instance*
gets a subclass of its class, in which `_value` is a property. When the last watcher has gone, the instance gets its own
class back.

>>> class Recording:
...     seen = set()
...     def looked_at(self, entry):
...         self.seen.add(entry)
>>> variable, subscription = keras.Variable([1.0, 2.0]), Subscription(Recording(), "kernel")
>>> watch(variable, subscription)
>>> float(keras.ops.sum(variable)), Recording.seen
(3.0, {'kernel'})
>>> unwatch(variable, subscription)
>>> type(variable) is keras.Variable
True
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import keras

from autodist_keras.capture.variables import Entry

_SUBSCRIPTIONS = "_autodist_subscriptions"

_tracing = ContextVar("autodist_tracing", default=False)


@contextmanager
def own_trace() -> Iterator[None]:
    """Mark a trace as one of the project's own: looks during this trace leave no variable in a graph of somebody else.

    >>> with own_trace():
    ...     is_own_trace()
    True
    """
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)


def is_own_trace() -> bool:
    """Whether a step of the project is being traced in this thread.

    >>> is_own_trace()
    False
    """
    return _tracing.get()


class Watcher(Protocol):
    """What is told of looks: a `State`."""

    def looked_at(self, entry: Entry) -> None:
        """Give the variable its current value; somebody is about to see it."""


@dataclass(frozen=True, eq=False)
class Subscription:
    """Ties a watched variable to the watcher that is told of looks."""

    watcher: Watcher
    entry: Entry


class _Subscriptions(list[Subscription]):
    """The subscriptions of one variable. The last one counts; the others wait for its end. A copy has none."""

    def __deepcopy__(self, memo: Any) -> _Subscriptions:
        return _Subscriptions()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Subscriptions, ())


def watch(variable: keras.Variable, subscription: Subscription) -> None:
    """Tell the subscription's watcher of every look at a variable, until `unwatch`. The module has an example.

    Two models may share a variable. The watcher of the other model is told of a look first: the variable then has that
    model's value, and that model will notice the changes of this one.
    """
    subscriptions = vars(variable).setdefault(_SUBSCRIPTIONS, _Subscriptions())
    if subscriptions:
        subscriptions[-1].watcher.looked_at(subscriptions[-1].entry)
    else:
        variable.__class__ = _watched(type(variable))
    subscriptions.append(subscription)


def unwatch(variable: keras.Variable, subscription: Subscription) -> None:
    """Take a subscription away. Without subscriptions, a variable is an instance of its own class again."""
    subscriptions = vars(variable)[_SUBSCRIPTIONS]
    subscriptions.remove(subscription)
    if not subscriptions:
        variable.__class__ = type(variable).__base__
        del vars(variable)[_SUBSCRIPTIONS]


_watched_classes: dict[type, type] = {}


def _watched(base: type) -> type:
    """A subclass of a variable's class, whose `_value` tells the last subscription's watcher of each look."""
    if base not in _watched_classes:

        def get_value(self: Any) -> Any:
            for subscription in vars(self).get(_SUBSCRIPTIONS, ())[-1:]:
                subscription.watcher.looked_at(subscription.entry)
            try:
                return vars(self)["_value"]
            except KeyError:
                raise AttributeError("_value") from None

        def set_value(self: Any, value: Any) -> None:
            vars(self)["_value"] = value

        _watched_classes[base] = type(base.__name__, (base,), {
            "_value": property(get_value, set_value), "__module__": base.__module__, "__qualname__": base.__qualname__,
        })
    return _watched_classes[base]
