"""The backup of a session: its last safe state, and all steps and loads since then.

In: the loads and steps of a session, and values read from it. Out: the state and the events with which
`RecoveringSession` brings another session to the same state. Large values are in a file (`on_disk.py`).

>>> backup = Backup()
>>> backup.loaded({"w": np.zeros(2)})
>>> backup.ran(Ran(0, (np.ones((4, 3)),), 4), training=True, written={"w"})
>>> print(backup)
the model holds the state after training step 0; the 1 step since then is lost
>>> from types import SimpleNamespace
>>> backup.take(SimpleNamespace(read_each=lambda names: ((name, np.ones(2)) for name in names), read_added=dict))
>>> print(backup)
the model holds the state after training step 1, the last one: nothing is lost
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autodist_core.errors import amount
from autodist_core.interrupts import defer_interrupt
from autodist_core.runtime.equal_arrays import same_bits
from autodist_core.runtime.recovery.on_disk import Away, OnDisk, array_of

_PAUSE_PER_COST = 50
"""The pause after a backup, by the backup's duration: backups take at most a fiftieth of the time."""
_LEAST_PAUSE = 1.0
_MOST_BYTES = 1 << 29
"""The largest size of the stored events. Larger ones make a backup due."""


@dataclass(frozen=True)
class Loaded:
    """The event that variables were set.

    >>> Loaded({"w": np.zeros(2)}).size
    16
    """

    values: Mapping[str, Away | np.ndarray]

    @property
    def size(self) -> int:
        """Its bytes in memory."""
        return sum(value.nbytes for value in self.values.values())


@dataclass(frozen=True)
class Ran:
    """The event that a step ran on a batch.

    >>> Ran(0, (np.zeros((4, 3)),), 4).size
    96
    """

    step: int
    arrays: Sequence[Any]
    total: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return sum(int(getattr(array, "nbytes", 0)) for array in self.arrays)


Event = Loaded | Ran


@dataclass
class Backup:
    """The state after some steps, and the events since then. The module's docstring has an example."""

    every: float | None = None
    """The seconds after which a backup is due, whatever it costs; None for a pause that depends on what it costs."""
    values: dict[str, Away | np.ndarray] = field(default_factory=dict)
    added: dict[str, np.ndarray] = field(default_factory=dict)
    """The values of the variables that kernels added."""
    steps: int = 0
    """The number of training steps that the values contain."""
    done: int = 0
    """The number of training steps that were completed."""
    events: list[Event] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    """The variables that may have other values since the state was read."""
    on_disk: OnDisk = field(default_factory=OnDisk)
    _event_bytes: int = 0
    _taken_at: float = field(default_factory=time.monotonic)
    _cost: float = 0.0
    """The seconds that the last backup took."""

    @property
    def current(self) -> bool:
        """Whether the session's state is the safe state."""
        return not self.events and not self.written

    def loaded(self, values: Mapping[str, Away | np.ndarray]) -> None:
        """Note that variables were set to `kept` values."""
        # A new variable is part of the safe state at once. The others are too, if there was no event since the read.
        at_once = {name: value for name, value in values.items() if self.current or name not in self.values}
        later = {name: value for name, value in values.items() if name not in at_once}
        with defer_interrupt():
            self.values = self.values | at_once
            if later:
                self._note(Loaded(later), later)

    def has(self, name: str, value: Away | np.ndarray) -> bool:
        """Whether a variable has this value in the safe state, and no step or load since then may have changed it.

        >>> backup = Backup()
        >>> backup.loaded({"w": np.zeros(2)})
        >>> backup.has("w", np.zeros(2)), backup.has("w", np.ones(2)), backup.has("b", np.zeros(2))
        (True, False, False)
        """
        if name not in self.values or name in self.written or isinstance(value, Away):
            return False
        return same_bits(array_of(self.values[name]), value)

    def ran(self, event: Ran, training: bool, written: Collection[str]) -> None:
        """Note that a step was completed, and which variables it may have written.

        The step's arrays are stored without a copy: they must not change any more.
        """
        with defer_interrupt():
            self.done += training
            if training or written:
                self._note(event, written)

    @property
    def due(self) -> bool:
        """Whether it is time for another backup."""
        pause = max(_LEAST_PAUSE, _PAUSE_PER_COST * self._cost) if self.every is None else self.every
        return bool(self.events) and (self._event_bytes > _MOST_BYTES or time.monotonic() - self._taken_at >= pause)

    def take(self, session: Any) -> None:
        """Read the state of a session again: the variables that were written since, and the added variables."""
        start = time.monotonic()
        # What was read is this backup's alone: what stays in memory is not copied.
        read_now = ((name, np.asarray(value)) for name, value in session.read_each(sorted(self.written)))
        values = {name: self.on_disk.keep(value, is_own=True) for name, value in read_now}
        added = self.added
        if self.steps < self.done:  # only a training step changes them
            added = {name: np.asarray(value) for name, value in session.read_added().items()}
        # After Ctrl-C, the backup has either the old state or the new one.
        with defer_interrupt():
            self.values, self.added = self.values | values, added
            self.steps, self._event_bytes = self.done, 0
            self.events.clear()
            self.written.clear()
            self._taken_at = time.monotonic()
            self._cost = self._taken_at - start

    def _note(self, event: Event, written: Iterable[str]) -> None:
        self.events.append(event)
        self.written.update(written)
        self._event_bytes += event.size

    def __str__(self) -> str:
        lost = self.done - self.steps
        steps = amount(lost, "step since then is", "steps since then are")
        since = f"; the {steps} lost" if lost else ", the last one: nothing is lost"
        return f"the model holds the state after training step {self.steps}{since}"
