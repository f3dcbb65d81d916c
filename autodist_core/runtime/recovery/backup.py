"""The last state of a session that is safe in this process, and what was done since: enough to get there again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
    current: bool = False
    """Whether nothing happened since it was taken."""
    _held: int = 0
    _taken: float = field(default_factory=time.monotonic)
    _cost: float = 0.0

    def loaded(self, values: Mapping[str, np.ndarray]) -> None:
        """Note that variables were set; those that are new were not anywhere before."""
        new = {name: np.array(value) for name, value in values.items() if name not in self.values}
        self.values |= new
        changed = {name: np.array(value) for name, value in values.items() if name not in new}
        self._note(Loaded(changed))

    def ran(self, event: Ran, training: bool) -> None:
        """Note that a step was completed. Its arrays are kept as they are: they must not change any more."""
        self.done += training
        self._note(event)

    @property
    def due(self) -> bool:
        """Whether it is time for another one."""
        pause = max(_LEAST_PAUSE, _PAUSE_PER_COST * self._cost)
        return self._held > _MOST_BYTES or time.monotonic() - self._taken > pause

    def take(self, read: Callable[[], tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]) -> None:
        """Replace the state by the current one: its variables and what kernels keep."""
        start = time.monotonic()
        values, kept = read()
        self.values = {name: np.array(value) for name, value in values.items()}
        self.kept = {name: np.array(value) for name, value in kept.items()}
        self.steps, self._held, self.current = self.done, 0, True
        self.events.clear()
        self._taken = time.monotonic()
        self._cost = self._taken - start

    def _note(self, event: Event) -> None:
        self.current = False
        self.events.append(event)
        self._held += event.size

    def __str__(self) -> str:
        lost = self.done - self.steps
        since = f"; the {lost} steps since then are lost" if lost else ", the last one: nothing is lost"
        return f"the model holds the state after training step {self.steps}{since}"
