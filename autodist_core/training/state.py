"""Keep the user's variables and those of the session equal.

In: a session, and the entries of the variables that its steps touch. Out: calls of `Session.load` and `Session.read`.
A front's step function calls `before_step`, runs the step of the session, and calls `end_step` and `after_step`.

While a model trains, the session has the newer values. The memory of a variable is freed meanwhile, if the session
keeps its value. A variable gets its value before somebody sees it; `numpy()` and `assign` go to the session instead. A
changed variable is loaded before the next step. `watching.py` reports the looks, `life.TRANSITIONS` says what follows.

On one machine, a variable of the model may be a copy of the session itself, its **home** (`homes.py`): it is never
behind, and not watched if it is the only copy. What has no home stays in the session between two calls. Sessions may
share variables: the one that was used last brings the values to the variables before another one runs a step.

Between two calls only what stays away is watched, and `Session.rest` frees the copies on the program's machine before
values come home. `release` keeps the memory of each value that came. TensorFlow gives a variable that changes other
memory, so `resume` finds the unchanged variables, which are not loaded again unless replicas are loose.

Any thread may look. Another thread than the one that trains waits for the end of the current step, but not for long:
then it sees the value that the model has. A value that it writes counts from the next step on.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from autodist_core.errors import SessionError
from autodist_core.give_back import give_back, while_drawn
from autodist_core.interrupts import defer_interrupt, never_interrupted
from autodist_core.log import log
from autodist_core.runtime.equal_arrays import same_bits
from autodist_core.runtime.protocol import Session, Tie
from autodist_core.runtime.recovery.on_disk import array_of
from autodist_core.step.graph_item import Variable
from autodist_core.training.entries import Entry, part_of, read_together
from autodist_core.training.first_values import stop_waiting, wait_again, wait_with
from autodist_core.training.homes import Homes
from autodist_core.training.life import IS_BEHIND, IS_CHANGED, IS_EQUAL, Event, Life, Moment, as_shown
from autodist_core.training.patience import Patience
from autodist_core.training.watching import Subscription, unwatch, watch, watch_first

_CHANGED, _CURRENT, _STALE = Moment(Life.CHANGED), Moment(Life.CURRENT), Moment(Life.STALE)


class TrainingState:
    """Keeps the model's variables and the session's equal, and moves only those that somebody saw or changed.

    >>> import tensorflow as tf
    >>> from autodist_core.runtime.example import example_batch, example_session
    >>> from autodist_core.strategy import PS
    >>> session, train = example_session(PS())
    >>> kernel, state = tf.Variable(tf.ones((3, 1))), TrainingState(session)
    >>> state.watch([Entry(train.item.variables[0], kernel)])
    >>> state.before_step()
    >>> outputs = train([example_batch(5)], total=5)
    >>> state.end_step()
    >>> print(f"{kernel.numpy()[0, 0]:.1f}")
    0.4
    >>> state.release()
    >>> session.close()
    """

    def __init__(self, session: Session, stays_away: bool | None = None) -> None:
        self.session = session
        self.stays_away = stays_away
        """Whether freed variables stay freed, and watched, between two calls; None if that depends on the session."""
        self._entries: dict[str, Entry] = {}
        self._moments: dict[str, Moment] = {}
        """The state of each variable whose state is not `Life.STALE`: few, while steps run and nobody looks."""
        self._watched: dict[str, Subscription] = {}
        self._covered: set[str] = set()
        """The variables whose looks were last reported to another session's state. None of these is behind here."""
        self._homes = Homes()
        self._freed: set[str] = set()
        """The variables that have no value here, since the session has it. Each gets one before anybody sees it."""
        self._left: dict[str, np.ndarray] = {}
        """The values that model and session had in common at the last `release`, as views of the variables' memory."""
        self._iterators = WeakKeyDictionary[Any, set[str]]()
        """The variables that the pipelines of iterators read. These looks are not reported."""
        self._thread = threading.get_ident()
        self._stepping = False
        self._unraised: BaseException | None = None
        """An error that came up in a look and was not raised there. The thread that trains raises it."""
        self._session_lock = threading.RLock()
        """For using the session between steps."""
        self._patience = Patience(self._session_lock)
        self._value_lock = threading.RLock()
        """For comparing or writing a variable's value together with its `Moment`."""

    @property
    def leaves_values(self) -> bool:
        """Whether freed variables stay freed, and watched, between two calls."""
        return self.session.on_one_machine if self.stays_away is None else self.stays_away

    def watch(self, entries: Iterable[Entry]) -> None:
        """Begin to watch variables. Variables that are watched already stay watched."""
        with defer_interrupt():
            for entry in entries:
                name, tie = entry.spec.name, self.session.tie(entry.spec.name)
                if tie is not Tie.APART:
                    entry.make_value()
                    stop_waiting(entry)
                ours = {Tie.APART: self._entries, Tie.HOME: self._homes.entries}.get(tie, {name: entry})
                if name not in ours:
                    ours[name] = entry
                    self._attach(entry)

    def resume(self) -> None:
        """Watch all variables again. Any of them may have changed since `release`."""
        self._thread = threading.get_ident()
        with defer_interrupt():
            for entry in (*self._entries.values(), *self._homes.entries.values()):
                if entry.spec.name not in self._watched:
                    self._attach(entry)

    def use_here(self) -> None:
        """Let this thread be the one that runs steps."""
        self._thread = threading.get_ident()

    def _attach(self, entry: Entry) -> None:
        name, subscription = entry.spec.name, Subscription(self, entry)
        if is_home := name in self._homes:
            entry.make_value()  # another session may have left it to its file
            self._homes.may_change(name)
        else:
            self._moments[name] = _CHANGED
        watch(subscription)  # it may refuse
        self._watched[name] = subscription
        left = None if is_home else self._left.pop(name, None)
        with self._value_lock:
            # Another thread may have looked by now.
            if left is not None and self._moments[name] is _CHANGED and same_bits(left, entry.view()):
                self._moments[name] = _CURRENT

    def covered(self, entry: Entry) -> None:
        """Note that another session's state is told of looks at this variable from now on."""
        self._covered.add(entry.spec.name)

    def give_way(self, entry: Entry) -> None:
        """Give a variable its current value before another session uses it. A SessionError says if a step runs."""
        if entry.spec.name in self._homes:
            self.settle()
            return
        with self._session_lock:
            if not self._pull_unless_stepping(entry):
                raise SessionError(
                    f"variable {entry.spec.name!r} is used by another AutoDist, strategy or DistributedModel, whose "
                    "step runs. Call one of them after the step of the other one."
                )
        self._note(entry, others=False)

    def before_step(self) -> None:
        """Load into the session the variables that were changed since the last step, or were never loaded."""
        for name in sorted(self._covered):
            watch_first(self._watched[name])
            self._covered.remove(name)
            if name in self._homes:
                self._homes.may_change(name)
        with self._session_lock:
            self._raise_unraised()
            if self._moments:
                give_back(self._load_changes())
            if due := self._homes.due(self.session.known):
                self.session.spread(due)
            self._stepping, self._patience.is_over = True, False

    def _load_changes(self) -> list[int]:
        """Load what was changed; return the bytes of what this freed: of variables, and of what made first values."""
        changed: dict[str, np.ndarray] = {}
        known = set(self.session.known)
        with self._value_lock:
            begun, first_values = [name for name in self._moments if name in known], dict[str, int]()
            for name in begun:
                moment = self._compare(name)
                if moment.life in IS_CHANGED:
                    if (first := self._entries[name].first_value()) is not None:
                        self.session.load({name: first})
                        first_values[name] = first.nbytes
                        self.stays_away = self.stays_away is not False
                        if not self._can_be_freed(name):
                            self._fill(self._entries[name], first)
                        continue
                    changed[name] = value = self._entries[name].view()
                    # If the user assigns the variable during the load, that assignment counts as a new change.
                    self._moments[name] = Moment(moment.life, value)
        if changed:
            log.debug("loading %d of %d variables", len(changed), len(known))
            self.session.load(changed)
        # From here on the session may be ahead, even if the step fails.
        with defer_interrupt(), self._value_lock:
            freed = while_drawn(first_values.values())
            for name in begun:
                moment = self._moments.pop(name).after(Event.STEP)
                if moment.life is not Life.STALE:
                    self._moments[name] = moment
                elif self._can_be_freed(name):
                    freed += [] if name in first_values else [self._entries[name].spec.byte_size]
                    self._freed.add(name)
                    self._entries[name].free()
        return freed

    def _can_be_freed(self, name: str) -> bool:
        """Whether the variable's value can come back whatever happens, and nobody reads it unseen."""
        is_kept = self.session.keeps(name) and (self.leaves_values or not self.session.on_one_machine)
        return is_kept and not any(name in read for read in self._iterators.values())

    def _fill(self, entry: Entry, value: Any = None) -> None:
        """Give a variable without a value one: this one, or that of the last safe state, or its first value."""
        if value is None:
            name = entry.spec.name
            value = self.session.last_safe(name) if name in self._freed else entry.first_value()
        if value is not None:
            entry.write(array_of(value))
            self._freed.discard(entry.spec.name)

    def end_step(self) -> None:
        """Note that the session is free again, after a step that succeeded or failed."""
        self._stepping = False

    def after_step(self) -> None:
        """Update the variables that pipelines read, and those that somebody saw while the step ran."""
        if not self._iterators and not self._moments:
            return
        with self._value_lock:
            read = set().union(*self._iterators.values())
            shown = {name for name, moment in self._moments.items() if moment.life is Life.STALE_HELD}
        with self._session_lock:
            self._pull([self._entries[name] for name in sorted(shown | read)])
        for name in sorted(read):
            self._note(self._entries[name], others=True)

    def copy_of(self, entry: Entry, rows: np.ndarray | None = None) -> np.ndarray | None:
        """A copy of a variable's value, which stays freed, for the thread that trains; None if it must look."""
        if not self._does_without(name := entry.spec.name):
            return None
        with self._session_lock, self._value_lock:
            return part_of(self.session.read([name])[name], rows) if self._compare(name).life is Life.STALE else None

    def takes(self, entry: Entry, value: Any) -> bool:
        """Give the session a value that the thread that trains assigns to a freed variable, which stays freed."""
        if not self._does_without(name := entry.spec.name) or not entry.fits(value):
            return False
        with self._session_lock, self._value_lock:
            if stale := self._compare(name).life is Life.STALE:
                self.session.load({name: np.asarray(value, entry.tf_variable.dtype.as_numpy_dtype)})
            return stale

    def _does_without(self, name: str) -> bool:
        return not self._stepping and name in self._freed and threading.get_ident() == self._thread

    def looked_at(self, entry: Entry) -> None:
        """Give a variable its current value before somebody sees it."""
        others = threading.get_ident() != self._thread
        if (name := entry.spec.name) not in self._entries:  # the variable is the only copy, or a home
            if name in self._homes and not self.session.works_here:
                if not self._stepping and not others:
                    with self._session_lock:
                        self.session.settle()
                # Another thread may change it while the next step runs.
                self._homes.may_change(name, 2 if others else 1)
            return
        if others:
            # Without its patience, the thread sees the value that the model has.
            self._patience.between_steps(lambda: self._pull_unless_stepping(entry), self.failed)
        else:
            with self._session_lock:
                self._pull_unless_stepping(entry)
        self._note(entry, others)

    @never_interrupted
    def failed(self, failure: BaseException) -> None:
        """Raise an error before the next step, or at the end of the training."""
        self._unraised = self._unraised or failure

    def iterated(self, entry: Entry, iterator: Any) -> None:
        """Give a variable its current value after each step from now on, as long as the iterator exists."""
        self.looked_at(entry)
        if entry.spec.name not in self._homes:
            with self._value_lock:
                self._iterators.setdefault(iterator, set()).add(entry.spec.name)

    def _pull_unless_stepping(self, entry: Entry) -> bool:
        """Pull a value that is behind; False if a step runs."""
        if not self._stepping and self._moments.get(entry.spec.name, _STALE).life in IS_BEHIND:
            self._pull(read_together(entry, list(self._entries.values()), self._freed))
        return not self._stepping

    def _note(self, entry: Entry, others: bool) -> None:
        """Remember the value that is shown, to find a change later."""
        name = entry.spec.name
        with self._value_lock:
            moment = self._moments.get(name, _STALE).after(Event.OTHERS_LOOK if others else Event.LOOK)
            self._fill(entry)
            if moment.shown is None and moment.life not in IS_CHANGED:
                moment = Moment(moment.life, as_shown(entry.view(), self._can_be_freed(name)))
            self._moments[name] = moment

    def settle(self, stays: bool = False) -> None:
        """Wait until no replica is at work. Raise an error that came up in a look. The state may `stay` where it is."""
        with self._session_lock:
            self._stepping = False
            self.session.settle(stays)
            self._raise_unraised()

    def _raise_unraised(self) -> None:
        failure, self._unraised = self._unraised, None
        if failure is not None:
            raise failure

    def pull_all(self, again: bool = False) -> None:
        """Bring every value that is newer in the session back to the model; with `again`, every value."""
        with self._session_lock:
            if again:
                with self._value_lock:
                    self._moments = {name: self._moments[name] for name in self._covered & self._moments.keys()}
            away = set(filter(self._can_be_freed, self._freed if self.leaves_values else ()))
            self._pull([each for name, each in self._entries.items() if name not in away])

    def go_back(self) -> None:
        """After a loss between two calls, give what nobody has changed since the last call its last safe value."""
        self.resume()
        with self._session_lock:
            self._moments = {name: moment for name, moment in self._moments.items() if moment.life in IS_CHANGED}
            self.pull_all()

    def values(self, entries: Sequence[Entry], path: str = "") -> list[Variable | Callable[[], np.ndarray]]:
        """What copies each variable's current value, or the variable of a checkpoint at `path` that machines wrote."""
        with self._session_lock:
            self.settle() if self.session.placement.loose is not None else self._raise_unraised()
            own = {id(each.tf_variable): name for name, each in (self._entries | self._homes.entries).items()}
            known = self._entries.keys() & self.session.known
            names = [own.get(id(entry.tf_variable), "") for entry in entries]
            behind = {name for name in names if name in known and self._compare(name).life in IS_BEHIND}
            written = self.session.write_large(path, sorted(behind)) if path else frozenset()
            found = self.session.read_kept(sorted(behind - written))
        return [
            replace(entry.spec, name=name) if name in written else partial(array_of, found[name]) if name in found
            else entry.read if name else entry.tf_variable.numpy for name, entry in zip(names, entries, strict=True)
        ]

    def release(self) -> None:
        """Stop watching what does not stay away. These variables are instances of their own classes again."""
        with defer_interrupt(), self._session_lock, self._value_lock:
            # While they are still watched: who writes from here on changes the memory. Interrupted loose replicas may
            # still update the session. A view of a changed large variable would keep all that came home twice.
            together, leaves = self.session.placement.loose is None, self.leaves_values
            self._left = {
                name: self._entries[name].view() for name in sorted(self._moments) if together and name in self._watched
                and self._compare(name).life in IS_EQUAL and (leaves or not self._can_be_freed(name))
            }
            away = self._freed if leaves else set()
            for name in sorted(self._freed - away):
                self._fill(self._entries[name])
            for name in self._watched.keys() - away:
                unwatch(self._watched.pop(name))
                wait_again(self._entries.get(name))
            self._covered.clear()
            self._homes.clear()
            # From here on changes are not reported.
            self._moments = dict.fromkeys(self._entries.keys() - away, _CHANGED)
            self._unraised = None
            self._stepping = False

    def let_go(self) -> None:
        """Stop for good. The variables that are away wait for their last safe values."""
        with self._session_lock:  # who looks meanwhile may be reading the session
            self.release()
            for name in sorted(self._watched):
                with defer_interrupt():
                    kept, subscription = self.session.last_safe(name), self._watched.pop(name)
                    unwatch(subscription)
                    wait_with(subscription.entry, kept)
                    with self._value_lock:
                        self._freed.discard(name)
                        self._moments[name] = _CHANGED

    def _compare(self, name: str) -> Moment:
        """Compare the model's value with the one that was shown, and return the variable's state."""
        with self._value_lock:
            moment = self._moments.get(name, _STALE)
            is_compared = moment.shown is not None and moment.life not in IS_CHANGED
            if is_compared and moment.differs(value := self._entries[name].view()):
                moment = self._moments[name] = moment.after(Event.DIFFER, value)
            return moment

    def _pull(self, entries: Sequence[Entry]) -> None:
        named = {entry.spec.name: entry for entry in entries}
        behind = {name for name in named.keys() & self.session.known if self._compare(name).life in IS_BEHIND}
        found = {name: entry for name, entry in named.items() if name in behind}
        for name, value in self.session.read_each(found) if found else ():
            with defer_interrupt(), self._value_lock:
                moment = self._compare(name)
                if moment.life in IS_BEHIND:
                    self._fill(found[name], value)
                    shown = as_shown(value, self._can_be_freed(name)) if moment.shown is not None else None
                    self._moments[name] = moment.after(Event.PULL, shown)
