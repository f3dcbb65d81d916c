"""One state in two places: the session trains it, the user's model shows it.

While a model trains, its variables know that the truth is in the session. Whoever looks at one gets its current value
first; whatever is changed is loaded before the next step. Who looks at nothing costs nothing. The looking is seen by
giving the variable *instances* a subclass for the time of a training; it is taken off again when that ends.

Anybody may look, in any thread. The session is one thread's at a time: others wait for the end of the step that runs,
and where it takes long, or waits for them in turn, they are shown what the model has, which is brought up to date when
the step ends. What they write then counts from the next step on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autodist_core.interrupts import held
from autodist_core.runtime import AnySession
from autodist_keras.capture.variables import Entry

_SMALL = 4096
_LINKS = "_autodist_links"
_PATIENCE, _PAUSE = 1.0, 0.002
"""For how many seconds another thread waits for the end of a step, and how often it asks."""

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
    others: bool
    """Whether it was another thread, which may come to write at any moment."""


_watched_classes: dict[type, type] = {}


def _watched(base: type) -> type:
    """A subclass of a variable's class that tells the state when somebody looks at the value."""
    if base not in _watched_classes:

        def get_value(self: Any) -> Any:
            for link in vars(self).get(_LINKS, ())[-1:]:
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
        self._looks: dict[str, _Look] = {}
        self._watched: list[tuple[Any, _Link]] = []
        self._leaked: set[str] = set()
        self._wanted: set[str] = set()
        """What was shown without being up to date."""
        self._thread = threading.get_ident()
        self._pulling = threading.local()
        self._stepping = False
        self._unsaid: Exception | None = None
        """The error of the training that another thread met when it looked: it is the training thread's."""
        self._in_vain = -1
        """The step for which another thread has waited too long."""
        self._free = threading.RLock()
        """Held by the thread that uses the session, between steps."""
        self._values = threading.RLock()
        """Held for as long as a value is compared or written, together with what is noted of it."""

    def watch(self, entries: Iterable[Entry]) -> None:
        """Begin to watch variables; those already watched stay so."""
        with held():
            for entry in entries:
                if entry.spec.name not in self._entries:
                    self._entries[entry.spec.name] = entry
                    self._attach(entry)

    def resume(self) -> None:
        """Watch all variables again, of which anything may have changed since `release`."""
        self._thread = threading.get_ident()
        with held():
            for entry in self._entries.values():
                self._attach(entry)

    def _attach(self, entry: Entry) -> None:
        name, owner = entry.spec.name, entry.owner
        self._synced[name] = self._steps
        self._looks[name] = _Look(None, self._steps, others=False)
        if not isinstance(owner, keras.Variable):
            # A bare TensorFlow variable says nothing of who looks at it.
            self._leaked.add(name)
            return
        links = vars(owner).setdefault(_LINKS, _Links())
        if links:
            # The training of another model that shares this variable waits meanwhile: it shows its value, and will
            # see what becomes of it.
            links[-1].state.looked_at(links[-1].entry)
        else:
            owner.__class__ = _watched(type(owner))
        link = _Link(self, entry)
        self._watched.append((owner, link))
        links.append(link)

    def before_step(self) -> None:
        """Load into the session what was changed since the last step, or never was there."""
        with self._free:
            self._raise_unsaid()
            if changed := self._changes():
                self.session.load(changed)
            # From here on the session may be ahead, whatever becomes of the step.
            self._steps, self._stepping = self._steps + 1, True

    def _changes(self) -> dict[str, np.ndarray]:
        changed: dict[str, np.ndarray] = {}
        known = set(self.session.known) if self._looks else ()
        with self._values:
            for name in [name for name in list(self._looks) if name in known]:
                look, value = self._looks.pop(name), self._entries[name].tf_variable.numpy()
                if not _same(value, look.value):
                    changed[name] = value
                if look.others and look.step == self._steps:
                    self._looks[name] = replace(look, value=value)
        return changed

    def end_step(self) -> None:
        """Note that the session is free again, whatever became of the step."""
        self._stepping = False

    def after_step(self) -> None:
        """What others look at unseen, or were shown as it was before, follows at once."""
        if not self._leaked and not self._wanted:
            return
        with self._values:
            wanted, self._wanted = self._wanted | self._leaked, set()
        entries = [self._entries[name] for name in sorted(wanted)]
        with self._free:
            self._pull(entries)
        for entry in entries:
            if entry.spec.name in self._leaked:
                self._note(entry, others=True)

    def looked_at(self, entry: Entry) -> None:
        """Give a variable its current value before somebody sees it."""
        if getattr(self._pulling, "now", False):
            return
        if not tf.executing_eagerly() and not _tracing.get():
            # Somebody else's graph holds the variable from now on, and will not come by here again.
            self._leaked.add(entry.spec.name)
        others = threading.get_ident() != self._thread
        brought = self._bring(entry, others)
        self._note(entry, others, wanted=not brought)

    def _bring(self, entry: Entry, others: bool) -> bool:
        """Bring the value from the session if that is free; whether it was."""
        if not others:
            with self._free:
                return self._brought(entry)
        # TensorFlow's own threads, in which Python runs as a part of a step or of the data, cannot wait for a step.
        waits = not isinstance(threading.current_thread(), threading._DummyThread)
        until = time.monotonic() + _PATIENCE
        while waits and self._free.acquire(timeout=_PATIENCE):
            try:
                if self._brought(entry):
                    return True
            except Exception as failure:
                # Who looks has no part in it, and is shown what the model has.
                self._unsaid = self._unsaid or failure
                return False
            finally:
                self._free.release()
            if self._in_vain == self._steps or time.monotonic() > until:
                self._in_vain = self._steps
                break
            time.sleep(_PAUSE)
        return False

    def _brought(self, entry: Entry) -> bool:
        if not self._stepping and self._is_stale(entry.spec.name):
            self._pull(self._alike(entry))
        return not self._stepping

    def _alike(self, entry: Entry) -> list[Entry]:
        """What is looked at together as a rule."""
        small = entry.spec.byte_size <= _SMALL
        return [
            other for other in list(self._entries.values())
            if other.spec.kind == entry.spec.kind and (other.spec.byte_size <= _SMALL) == small
        ]

    def _note(self, entry: Entry, others: bool, wanted: bool = False) -> None:
        """Remember what is shown, and whether it is to be brought up to date after the step."""
        name = entry.spec.name
        with self._values, tf.init_scope():
            if wanted:
                self._wanted.add(name)
            look = self._looks.get(name)
            if look is None:
                self._looks[name] = _Look(entry.tf_variable.numpy(), self._steps, others)
            elif others:
                self._looks[name] = replace(look, step=self._steps, others=True)

    def settle(self) -> None:
        """Wait until no replica is at work; an error of the training that only another thread met is raised here."""
        with self._free:
            self._stepping = False
            self.session.settle()
            self._raise_unsaid()

    def _raise_unsaid(self) -> None:
        failure, self._unsaid = self._unsaid, None
        if failure is not None:
            raise failure

    def pull_all(self, again: bool = False) -> None:
        """Bring everything the session is ahead in back to the model; `again` also what was brought before."""
        with self._free:
            if again:
                self._synced = dict.fromkeys(self._synced, -1)
                self._looks.clear()
            self._pull(list(self._entries.values()))

    def release(self) -> None:
        """Stop watching; the variables are plain Keras variables again."""
        with held(), self._free, self._values:
            while self._watched:
                owner, link = self._watched.pop()
                links = vars(owner)[_LINKS]
                links.remove(link)
                if not links:
                    owner.__class__ = type(owner).__base__
                    del vars(owner)[_LINKS]
            # What somebody's graph holds, it holds in the next call too.
            self._looks.clear()
            self._wanted.clear()
            self._unsaid = None
            self._stepping = False

    def _is_stale(self, name: str) -> bool:
        """Whether the session is ahead of what the model shows, and nobody has changed that meanwhile."""
        return self._synced[name] < self._steps and not self._is_changed(name)

    def _is_changed(self, name: str) -> bool:
        look = self._looks.get(name)
        return look is not None and not _same(self._entries[name].tf_variable.numpy(), look.value)

    def _pull(self, entries: Sequence[Entry]) -> None:
        known = set(self.session.known)
        self._pulling.now = True
        try:
            stale = [entry for entry in entries if self._is_stale(entry.spec.name) and entry.spec.name in known]
            values = self.session.read(entry.spec.name for entry in stale) if stale else {}
            with held(), tf.init_scope(), self._values:
                for entry in stale:
                    name = entry.spec.name
                    if self._is_changed(name):
                        continue
                    # A copy: what was read may be the session's own memory, and TensorFlow would share it.
                    entry.tf_variable.assign(np.array(values[name]))
                    self._synced[name] = self._steps
                    if name in self._looks:
                        self._looks[name] = replace(self._looks[name], value=np.array(values[name]))
        finally:
            self._pulling.now = False


def _same(one: np.ndarray, other: np.ndarray | None) -> bool:
    """Whether two arrays are the same bits, NaN and all."""
    if other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.tobytes() == other.tobytes()
