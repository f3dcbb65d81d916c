"""The last state of a session that is safe in this process, and what was done since: enough to get there again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autodist_core.interrupts import defer_interrupt

_PAUSE_PER_COST = 50
"""A backup takes at most a fiftieth of the time."""
_LEAST_PAUSE = 1.0
_MOST_BYTES = 1 << 29
"""How much of the data may be held to be done again."""


@dataclass(frozen=True)
class Loaded:
    """Variables that were set."""

    values: Mapping[str, np.ndarray]

    @property
    def size(self) -> int:
        """Its bytes."""
        return sum(value.nbytes for value in self.values.values())


@dataclass(frozen=True)
class Ran:
    """A step that was run on a batch."""

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
    """The state after some steps, and everything that happened since."""

    values: dict[str, np.ndarray] = field(default_factory=dict)
    kept: dict[str, np.ndarray] = field(default_factory=dict)
    steps: int = 0
    """Training steps that the values contain."""
    done: int = 0
    """Training steps that were completed."""
    events: list[Event] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    """Variables that may have another value since the state was read."""
    trained: bool = False
    """Whether a training step ran since, so that what kernels keep may have another value too."""
    _held: int = 0
    _taken: float = field(default_factory=time.monotonic)
    _cost: float = 0.0

    @property
    def current(self) -> bool:
        """Whether the session's state is the one that is safe here."""
        return not self.events

    def loaded(self, values: Mapping[str, np.ndarray]) -> None:
        """Note that variables were set."""
        copies = {name: np.array(value) for name, value in values.items()}
        # A new variable was nowhere before. Where nothing happened since the state was read, the others are part of it.
        at_once = {name: value for name, value in copies.items() if self.current or name not in self.values}
        later = {name: value for name, value in copies.items() if name not in at_once}
        with defer_interrupt():
            self.values = self.values | at_once
            if later:
                self._note(Loaded(later), later)

    def ran(self, event: Ran, training: bool, written: Collection[str]) -> None:
        """Note that a step was completed, which may have written these variables.

        The step's arrays are kept as they are: they must not change any more.
        """
        with defer_interrupt():
            self.done += training
            self.trained |= training
            if training or written:
                self._note(event, written)

    @property
    def due(self) -> bool:
        """Whether it is time for another one."""
        pause = max(_LEAST_PAUSE, _PAUSE_PER_COST * self._cost)
        return bool(self.events) and (self._held > _MOST_BYTES or time.monotonic() - self._taken > pause)

    def take(
        self, read: Callable[[Iterable[str]], dict[str, np.ndarray]], read_added: Callable[[], dict[str, np.ndarray]]
    ) -> None:
        """Bring the state up to date: the variables that were written since, and what kernels keep."""
        start = time.monotonic()
        values = {name: np.array(value) for name, value in read(sorted(self.written)).items()}
        kept = {name: np.array(value) for name, value in read_added().items()} if self.trained else self.kept
        # Ctrl-C leaves either the state of before or the new one.
        with defer_interrupt():
            self.values, self.kept = self.values | values, kept
            self.steps, self._held, self.trained = self.done, 0, False
            self.events.clear()
            self.written.clear()
            self._taken = time.monotonic()
            self._cost = self._taken - start

    def _note(self, event: Event, written: Iterable[str]) -> None:
        self.events.append(event)
        self.written.update(written)
        self._held += event.size

    def __str__(self) -> str:
        lost = self.done - self.steps
        since = f"; the {lost} steps since then are lost" if lost else ", the last one: nothing is lost"
        return f"the model holds the state after training step {self.steps}{since}"
