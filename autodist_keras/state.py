"""One state in two places: the session trains it, the user's model shows it.

While a model trains, its variables know that the truth is in the session. Whoever looks at one gets its current value
first; whatever is changed is loaded before the next step. Who looks at nothing costs nothing. The looking is seen by
giving the variable *instances* a subclass for the time of a training; it is taken off again when that ends.

Anybody may look, in any thread and in the middle of a step, and may be shown what was true before it: so what is noted
of a look says after how many steps that was. The training itself is one thread, which nobody else's look waits for
or holds up for longer than it takes to read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autodist_core.runtime import AnySession
from autodist_keras.variables import Entry

_Read = Callable[[Iterable[str]], Mapping[str, np.ndarray]]

_SMALL = 4096
_LINKS = "_autodist_links"

_tracing = ContextVar("autodist_tracing", default=False)


@contextmanager
def own_trace() -> Iterator[None]:
    """While our own steps are traced, looking at a variable makes nobody else hold it."""
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)


@dataclass(frozen=True, eq=False)
class _Link:
    """Ties a watched variable to the state that watches it."""

    state: State
    entry: Entry


class _Links(list[_Link]):
    """The links of one variable; the last counts, and those before wait for its end. Copies are tied to nothing."""

    def __deepcopy__(self, memo: Any) -> _Links:
        return _Links()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Links, ())


@dataclass(frozen=True, eq=False)
class _Look:
    """What somebody was shown: from then on, another value is a change."""

    value: np.ndarray | None
    """None where nobody knows what the session has, so that it is to get what is there."""
    step: int


_watched_classes: dict[type, type] = {}


def _watched(base: type) -> type:
    """A subclass of a variable's class that tells the state when somebody looks at the value."""
    if base not in _watched_classes:

        def get_value(self: Any) -> Any:
            links = vars(self).get(_LINKS)
            if links:
                links[-1].state.looked_at(links[-1].entry)
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
        self._looks: dict[str, _Look] = {}
        self._watched: list[tuple[Any, _Link]] = []
        self._leaked: set[str] = set()
        self._thread = threading.get_ident()
        self._pulling = threading.local()
        self._writing = threading.Lock()
        self._others = threading.Lock()
        """Held while another thread looks."""

    def watch(self, entries: Iterable[Entry]) -> None:
        """Begin to watch variables; those already watched stay so."""
        for entry in entries:
            if entry.spec.name not in self._entries:
                self._entries[entry.spec.name] = entry
                self._attach(entry)

    def resume(self) -> None:
        """Watch all variables again, of which anything may have changed since `release`."""
        self._thread = threading.get_ident()
        for entry in self._entries.values():
            self._attach(entry)

    def _attach(self, entry: Entry) -> None:
        name, owner = entry.spec.name, entry.owner
        if isinstance(owner, keras.Variable):
            links = vars(owner).setdefault(_LINKS, _Links())
            if links:
                # The training of another model that shares this variable waits meanwhile: it shows its value, and
                # will see what becomes of it.
                links[-1].state.looked_at(links[-1].entry)
            else:
                owner.__class__ = _watched(type(owner))
            links.append(_Link(self, entry))
            self._watched.append((owner, links[-1]))
        else:
            # A bare TensorFlow variable says nothing of who looks at it.
            self._leaked.add(name)
        self._synced[name] = self._steps
        self._looks[name] = _Look(None, self._steps)

    def before_step(self) -> None:
        """Load into the session what was changed since the last step, or never was there."""
        if not self._looks:
            return
        known = set(self.session.known)
        changed = {}
        for name in list(self._looks):
            if name in known and (look := self._looks.pop(name, None)):
                value = self._entries[name].tf_variable.numpy()
                if not _same(value, look.value):
                    changed[name] = value
        self.session.load(changed)

    def after_step(self) -> None:
        """Note that the session is ahead now; what others may look at unseen follows at once."""
        self._steps += 1
        if self._leaked:
            entries = [self._entries[name] for name in sorted(self._leaked)]
            self._pull(entries, self.session.read)
            for entry in entries:
                if self._synced[entry.spec.name] == self._steps:
                    self._looks[entry.spec.name] = _Look(entry.tf_variable.numpy(), self._steps)

    def looked_at(self, entry: Entry) -> None:
        """Give a variable its current value before somebody sees it."""
        if getattr(self._pulling, "now", False):
            return
        if threading.get_ident() == self._thread:
            self._show(entry, self.session.read)
            return
        with self._others:
            if self._watched:
                self._show(entry, self.session.peek)

    def _show(self, entry: Entry, read: _Read) -> None:
        name, steps = entry.spec.name, self._steps
        if not tf.executing_eagerly() and not _tracing.get():
            # Somebody else's graph holds the variable from now on, and will not come by here again.
            self._leaked.add(name)
        if self._is_stale(name):
            small = entry.spec.byte_size <= _SMALL
            self._pull([
                other for other in self._entries.values()
                if other.spec.kind == entry.spec.kind and (other.spec.byte_size <= _SMALL) == small
            ], read)
        if name not in self._looks:
            with tf.init_scope():
                self._looks[name] = _Look(entry.tf_variable.numpy(), steps)

    def pull_all(self, again: bool = False) -> None:
        """Bring everything the session is ahead in back to the model; `again` also what was brought before."""
        if again:
            self._synced = dict.fromkeys(self._synced, -1)
            self._looks.clear()
        self._pull(list(self._entries.values()), self.session.read)

    def release(self) -> None:
        """Stop watching; the variables are plain Keras variables again."""
        with self._others:
            for owner, link in self._watched:
                links = vars(owner)[_LINKS]
                links.remove(link)
                if not links:
                    owner.__class__ = type(owner).__base__
                    del vars(owner)[_LINKS]
            self._watched.clear()
            self._looks.clear()
            self._leaked.clear()

    def _is_stale(self, name: str) -> bool:
        """Whether the session is ahead of what the model shows, and nobody has changed that meanwhile."""
        if self._synced[name] >= self._steps:
            return False
        look = self._looks.get(name)
        if look is None:
            return True
        # Who looked while a step ran was shown what was before it.
        return look.step < self._steps and _same(self._entries[name].tf_variable.numpy(), look.value)

    def _pull(self, entries: Sequence[Entry], read: _Read) -> None:
        known, steps = set(self.session.known), self._steps
        self._pulling.now = True
        try:
            stale = [entry for entry in entries if self._is_stale(entry.spec.name) and entry.spec.name in known]
            values = read(entry.spec.name for entry in stale)
            with tf.init_scope(), self._writing:
                for entry in stale:
                    name = entry.spec.name
                    if self._synced[name] >= steps:
                        continue  # another thread has brought the same, or what is newer
                    # A copy: what was read may be the session's own memory, and TensorFlow would share it.
                    entry.tf_variable.assign(np.array(values[name]))
                    self._synced[name] = steps
                    self._looks.pop(name, None)
        finally:
            self._pulling.now = False


def _same(one: np.ndarray, other: np.ndarray | None) -> bool:
    """Whether two arrays are the same bits, NaN and all."""
    if other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tobytes() == other.tobytes()
