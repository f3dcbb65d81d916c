"""One state in two places: the session trains it, the user's model shows it.

While a model trains, its variables know that the truth is in the session. Whoever looks at one gets its current value
first; whatever is changed is loaded before the next step. Who looks at nothing costs nothing. The looking is seen by
giving the variable *instances* a subclass for the time of a training; it is taken off again when that ends.

What is known of each variable is a state of `life.Life`; `life.TRANSITIONS` says which events lead from one to another.

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
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autodist_core.interrupts import defer_interrupt
from autodist_core.runtime import Session
from autodist_keras.capture.variables import Entry
from autodist_keras.training.life import IS_BEHIND, IS_CHANGED, Event, Life, Moment

_SMALL = 4096
_LINKS = "_autodist_links"
_PATIENCE, _PAUSE = 1.0, 0.002
"""For how many seconds another thread waits for the end of a step, and how often it asks."""
_CHANGED, _STALE = Moment(Life.CHANGED), Moment(Life.STALE)

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


_watched_classes: dict[type, type] = {}


def _watched(base: type) -> type:
    """A subclass of a variable's class that tells the state when somebody looks at the value."""
    if base not in _watched_classes:

        def get_value(self: Any) -> Any:
            for link in vars(self).get(_LINKS, ())[-1:]:
                link.state.looked_at(link.entry)
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


class State:
    """Keeps the model's variables and the session's alike, moving only what somebody looked at or changed."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._entries: dict[str, Entry] = {}
        self._moments: dict[str, Moment] = {}
        """The state of each variable that is not merely `Life.STALE`: of few, while steps run and nobody looks."""
        self._watched: list[tuple[Any, _Link]] = []
        self._leaked: set[str] = set()
        """Variables that somebody's graph holds, or that cannot be watched: they are as good as looked at always."""
        self._thread = threading.get_ident()
        self._pulling = threading.local()
        self._stepping = False
        self._unsaid: Exception | None = None
        """The error of the training that another thread met when it looked: it is the training thread's."""
        self._in_vain = False
        """Whether another thread has waited too long for the step that runs."""
        self._free = threading.RLock()
        """Held by the thread that uses the session, between steps."""
        self._values = threading.RLock()
        """Held for as long as a value is compared or written, together with what is noted of it."""

    def watch(self, entries: Iterable[Entry]) -> None:
        """Begin to watch variables; those already watched stay so."""
        with defer_interrupt():
            for entry in entries:
                if entry.spec.name not in self._entries:
                    self._entries[entry.spec.name] = entry
                    self._attach(entry)

    def resume(self) -> None:
        """Watch all variables again, of which anything may have changed since `release`."""
        self._thread = threading.get_ident()
        with defer_interrupt():
            for entry in self._entries.values():
                self._attach(entry)

    def _attach(self, entry: Entry) -> None:
        name, owner = entry.spec.name, entry.owner
        self._moments[name] = _CHANGED
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
            if self._moments:
                self._load_changes()
            self._stepping, self._in_vain = True, False

    def _load_changes(self) -> None:
        changed: dict[str, np.ndarray] = {}
        known = set(self.session.known)
        with self._values:
            begun = [name for name in self._moments if name in known]
            for name in begun:
                moment = self._compared(name)
                if moment.life in IS_CHANGED:
                    changed[name] = value = self._entries[name].tf_variable.numpy()
                    # What is written while this value is loaded is another change.
                    self._moments[name] = Moment(moment.life, value)
        if changed:
            self.session.load(changed)
        # From here on the session may be ahead, whatever becomes of the step.
        with defer_interrupt(), self._values:
            for name in begun:
                moment = self._moments.pop(name).after(Event.STEP)
                if moment.life is not Life.STALE:
                    self._moments[name] = moment

    def end_step(self) -> None:
        """Note that the session is free again, whatever became of the step."""
        self._stepping = False

    def after_step(self) -> None:
        """What others look at unseen, or were shown as it was before, follows at once."""
        if not self._leaked and not self._moments:
            return
        with self._values:
            shown = {name for name, moment in self._moments.items() if moment.life is Life.STALE_HELD}
        entries = [self._entries[name] for name in sorted(shown | self._leaked)]
        if not entries:
            return
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
        self._bring(entry, others)
        self._note(entry, others)

    def _bring(self, entry: Entry, others: bool) -> None:
        """Bring the value from the session if that is free."""
        if not others:
            with self._free:
                self._brought(entry)
            return
        # TensorFlow's own threads, in which Python runs as a part of a step or of the data, cannot wait for a step.
        waits = not isinstance(threading.current_thread(), threading._DummyThread)
        until = time.monotonic() + _PATIENCE
        while waits and self._free.acquire(timeout=_PATIENCE):
            try:
                if self._brought(entry):
                    return
            except Exception as failure:
                # Who looks has no part in it, and is shown what the model has.
                self._unsaid = self._unsaid or failure
                return
            finally:
                self._free.release()
            if self._in_vain or time.monotonic() > until:
                self._in_vain = True
                return
            time.sleep(_PAUSE)

    def _brought(self, entry: Entry) -> bool:
        if not self._stepping and self._moments.get(entry.spec.name, _STALE).life in IS_BEHIND:
            self._pull(self._alike(entry))
        return not self._stepping

    def _alike(self, entry: Entry) -> list[Entry]:
        """What is looked at together as a rule."""
        small = entry.spec.byte_size <= _SMALL
        return [
            other for other in list(self._entries.values())
            if other.spec.kind == entry.spec.kind and (other.spec.byte_size <= _SMALL) == small
        ]

    def _note(self, entry: Entry, others: bool) -> None:
        """Remember what is shown."""
        name = entry.spec.name
        with self._values, tf.init_scope():
            moment = self._moments.get(name, _STALE).after(Event.OTHERS_LOOK if others else Event.LOOK)
            if moment.shown is None and moment.life not in IS_CHANGED:
                moment = Moment(moment.life, entry.tf_variable.numpy())
            self._moments[name] = moment

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
                with self._values:
                    self._moments.clear()
            self._pull(list(self._entries.values()))

    def release(self) -> None:
        """Stop watching; the variables are plain Keras variables again."""
        with defer_interrupt(), self._free, self._values:
            while self._watched:
                owner, link = self._watched.pop()
                links = vars(owner)[_LINKS]
                links.remove(link)
                if not links:
                    owner.__class__ = type(owner).__base__
                    del vars(owner)[_LINKS]
            # Nobody sees what is changed from here on. What somebody's graph holds, it holds in the next call too.
            self._moments = dict.fromkeys(self._entries, _CHANGED)
            self._unsaid = None
            self._stepping = False

    def _compared(self, name: str) -> Moment:
        """The state of a variable, once it is known whether the model has another value than was shown."""
        with self._values:
            moment = self._moments.get(name, _STALE)
            if moment.shown is not None and moment.life not in IS_CHANGED:
                with tf.init_scope():
                    value = self._entries[name].tf_variable.numpy()
                if moment.differs(value):
                    moment = self._moments[name] = moment.after(Event.DIFFER, value)
            return moment

    def _pull(self, entries: Sequence[Entry]) -> None:
        known = set(self.session.known)
        self._pulling.now = True
        try:
            behind = [
                entry for entry in entries
                if entry.spec.name in known and self._compared(entry.spec.name).life in IS_BEHIND
            ]
            values = self.session.read(entry.spec.name for entry in behind) if behind else {}
            with defer_interrupt(), tf.init_scope(), self._values:
                for entry in behind:
                    name = entry.spec.name
                    moment = self._compared(name)
                    if moment.life not in IS_BEHIND:
                        continue
                    # Copies: what was read may be the session's own memory, and TensorFlow would share it.
                    entry.tf_variable.assign(np.array(values[name]))
                    shown = np.array(values[name]) if moment.shown is not None else None
                    self._moments[name] = moment.after(Event.PULL, shown)
        finally:
            self._pulling.now = False
