"""One state in two places: the session trains it, the user's model shows it.

While a model trains, its variables know that the truth is in the session. Whoever looks at one gets its current value
first; whatever is changed is loaded before the next step. Who looks at nothing costs nothing. The looking is seen by
giving the variable *instances* a subclass for the time of a training; it is taken off again when that ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autodist_core.runtime import AnySession
from autodist_keras.variables import Entry

_SMALL = 4096
_LINK = "_autodist_link"


_tracing = ContextVar("autodist_tracing", default=False)


@contextmanager
def own_trace() -> Iterator[None]:
    """While our own steps are traced, looking at a variable makes nobody else hold it."""
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)


class _Link:
    """Ties one watched variable to the state; copies of the variable are tied to nothing."""

    def __init__(self, state: State, entry: Entry) -> None:
        self.state = state
        self.entry = entry

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return (_nothing, ())


def _nothing() -> None:
    return None


_watched_classes: dict[type, type] = {}


def _watched(base: type) -> type:
    """A subclass of a variable's class that tells the state when somebody looks at the value."""
    if base not in _watched_classes:

        def get_value(self: Any) -> Any:
            link = vars(self).get(_LINK)
            if link is not None:
                link.state.looked_at(link.entry)
            return vars(self).get("_value")

        def set_value(self: Any, value: Any) -> None:
            vars(self)["_value"] = value

        _watched_classes[base] = type(base.__name__, (base,), {
            "_value": property(get_value, set_value), "__module__": base.__module__, "__qualname__": base.__qualname__,
        })
    return _watched_classes[base]


class State:
    """Keeps the model's variables and the session's alike, moving only what somebody looked at or changed."""

    def __init__(self, session: AnySession) -> None:
        self.session = session
        self._entries: dict[str, Entry] = {}
        self._steps = 0
        self._synced: dict[str, int] = {}
        self._exposed: dict[str, np.ndarray | None] = {}
        self._classes: list[tuple[Any, type]] = []
        self._busy = False
        self._leaked: set[str] = set()

    def watch(self, entries: Iterable[Entry]) -> None:
        """Begin to watch variables; those already watched stay so."""
        for entry in entries:
            if entry.spec.name not in self._entries:
                self._entries[entry.spec.name] = entry
                self._attach(entry)

    def resume(self) -> None:
        """Watch all variables again, of which anything may have changed since `release`."""
        for entry in self._entries.values():
            self._attach(entry)

    def _attach(self, entry: Entry) -> None:
        self._synced[entry.spec.name] = self._steps
        self._exposed[entry.spec.name] = None
        if not isinstance(entry.owner, keras.Variable):
            # A bare TensorFlow variable says nothing of who looks at it.
            self._leaked.add(entry.spec.name)
        else:
            vars(entry.owner)[_LINK] = _Link(self, entry)
            self._classes.append((entry.owner, type(entry.owner)))
            entry.owner.__class__ = _watched(type(entry.owner))

    def before_step(self) -> None:
        """Load into the session what was changed since the last step, or never was there."""
        if not self._exposed:
            return
        known = set(self.session.known)
        changed = {}
        for name, baseline in list(self._exposed.items()):
            if name in known:
                value = self._entries[name].tf_variable.numpy()
                if baseline is None or not _same(value, baseline):
                    changed[name] = value
                del self._exposed[name]
        self.session.load(changed)

    def after_step(self) -> None:
        """Note that the session is ahead now; what others may look at unseen follows at once."""
        self._steps += 1
        if self._leaked:
            entries = [self._entries[name] for name in sorted(self._leaked)]
            self._pull(entries)
            for entry in entries:
                self._exposed.setdefault(entry.spec.name, entry.tf_variable.numpy())

    def looked_at(self, entry: Entry) -> None:
        """Give a variable its current value before somebody sees it."""
        if self._busy:
            return
        name = entry.spec.name
        if not tf.executing_eagerly() and not _tracing.get():
            # Somebody else's graph holds the variable from now on, and will not come by here again.
            self._leaked.add(name)
        if self._is_stale(name):
            small = entry.spec.byte_size <= _SMALL
            self._pull([
                other for other in self._entries.values()
                if other.spec.kind == entry.spec.kind and (other.spec.byte_size <= _SMALL) == small
            ])
        if name not in self._exposed:
            with tf.init_scope():
                self._exposed[name] = entry.tf_variable.numpy()

    def pull_all(self, again: bool = False) -> None:
        """Bring everything the session is ahead in back to the model; `again` also what was brought before."""
        if again:
            self._synced = dict.fromkeys(self._synced, -1)
            self._exposed.clear()
        self._pull(list(self._entries.values()))

    def release(self) -> None:
        """Stop watching; the variables are plain Keras variables again."""
        for owner, before in self._classes:
            owner.__class__ = before
            vars(owner).pop(_LINK, None)
        self._classes.clear()
        self._exposed.clear()
        self._leaked.clear()

    def _is_stale(self, name: str) -> bool:
        return self._synced[name] < self._steps and name not in self._exposed

    def _pull(self, entries: Sequence[Entry]) -> None:
        known = set(self.session.known)
        stale = [entry for entry in entries if self._is_stale(entry.spec.name) and entry.spec.name in known]
        self._busy = True
        try:
            values = self.session.read(entry.spec.name for entry in stale)
            with tf.init_scope():
                for entry in stale:
                    # A copy: what was read may be the session's own memory, and TensorFlow would share it.
                    entry.tf_variable.assign(np.array(values[entry.spec.name]))
                    self._synced[entry.spec.name] = self._steps
        finally:
            self._busy = False


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays are the same bits, NaN and all."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
