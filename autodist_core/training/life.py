"""The life of one variable while its model trains: a state, and the events that lead from one state to another.

In: the looks, steps and pulls that `state.py` reports. Out: the state, by which `state.py` decides what to load and
what to pull. `_ROWS` has, for each state, the states that follow on the events.

A state says two things. The first is where the newer value is: nowhere (`CURRENT`, `SHOWN`, `HELD`), in the session
(`STALE`...) or in the model (`CHANGED`...). The second is whether somebody was shown the model's value: if so, another
value in the model is a change. The training thread writes only between two steps, so a value that it was shown counts
until the next step. Another thread may look before a step and write while the step runs, so a value that this thread
was shown counts for one step more. The variable is held (`HELD`) before that step, and left (`LEFT`) during it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum

import numpy as np

from autodist_core.runtime.equal_arrays import same_bits


class Life(Enum):
    """Where a variable's newer value is, and which thread was shown the model's value.

    >>> print(Life.STALE.value)
    the session is ahead of the model, and nobody was shown the model's value
    """

    CHANGED = "the session is to get the model's value: it was changed, or never loaded"
    CHANGED_HELD = "the same, and another thread was shown the value"
    CURRENT = "session and model have the same value, and nobody was shown it"
    SHOWN = "the same, and the thread that trains was shown it: another value is a change"
    HELD = "the same, and another thread was shown it, which may write it during the next step"
    STALE = "the session is ahead of the model, and nobody was shown the model's value"
    STALE_HELD = "the session is ahead, and somebody was shown the model's value while a step ran"
    STALE_LEFT = "the session is ahead, and another thread was shown the model's value before the step"


class Event(Enum):
    """What may happen to a variable.

    >>> print(Event.PULL.value)
    the model gets the session's value
    """

    LOOK = "the thread that trains is shown the model's value"
    OTHERS_LOOK = "another thread is shown the model's value"
    DIFFER = "the model has another value than was shown"
    STEP = "a step begins; what was changed has been loaded"
    PULL = "the model gets the session's value"


_ROWS = {
    # LOOK, OTHERS_LOOK, DIFFER, STEP, PULL
    Life.CHANGED: (Life.CHANGED, Life.CHANGED_HELD, Life.CHANGED, Life.STALE, None),
    Life.CHANGED_HELD: (Life.CHANGED_HELD, Life.CHANGED_HELD, Life.CHANGED_HELD, Life.STALE_LEFT, None),
    Life.CURRENT: (Life.SHOWN, Life.HELD, None, Life.STALE, Life.CURRENT),
    Life.SHOWN: (Life.SHOWN, Life.HELD, Life.CHANGED, Life.STALE, Life.SHOWN),
    Life.HELD: (Life.HELD, Life.HELD, Life.CHANGED_HELD, Life.STALE_LEFT, Life.HELD),
    Life.STALE: (Life.STALE_HELD, Life.STALE_HELD, None, Life.STALE, Life.CURRENT),
    Life.STALE_HELD: (Life.STALE_HELD, Life.STALE_HELD, Life.CHANGED_HELD, Life.STALE_LEFT, Life.HELD),
    Life.STALE_LEFT: (Life.STALE_HELD, Life.STALE_HELD, Life.CHANGED, Life.STALE, Life.SHOWN),
}
TRANSITIONS: dict[tuple[Life, Event], Life] = {
    (life, event): to for life, row in _ROWS.items() for event, to in zip(Event, row, strict=True) if to is not None
}
"""The state that follows on a state and an event. An event without an entry cannot happen in that state."""

IS_BEHIND = frozenset({Life.STALE, Life.STALE_HELD, Life.STALE_LEFT})
"""The states in which the session is ahead of the model."""
IS_CHANGED = frozenset({Life.CHANGED, Life.CHANGED_HELD})
"""The states in which the session is to get the model's value."""
IS_EQUAL = frozenset(Life) - IS_BEHIND - IS_CHANGED
"""The states in which session and model have the same value."""


@dataclass(frozen=True, eq=False)
class Moment:
    """A variable's state, and the value with which the model's is compared to find a change.

    >>> seen = Moment(Life.CURRENT).after(Event.LOOK, np.zeros(2))
    >>> seen.life.name, seen.differs(np.ones(2))
    ('SHOWN', True)
    """

    life: Life
    shown: np.ndarray | bytes | None = None
    """The value or its digest; None if nobody was shown a value, or if the model's value is loaded in any case."""

    def after(self, event: Event, shown: np.ndarray | bytes | None = None) -> Moment:
        """The moment after an event. The value that was shown stays, unless another value is given.

        >>> Moment(Life.STALE).after(Event.PULL).life.name
        'CURRENT'
        """
        return Moment(TRANSITIONS[self.life, event], self.shown if shown is None else shown)

    def differs(self, value: np.ndarray) -> bool:
        """Whether a value of the model differs from the value that was shown. Bits are compared, so NaN equals NaN.

        >>> Moment(Life.SHOWN, np.ones(2)).differs(np.ones(2)), Moment(Life.SHOWN, np.ones(2)).differs(np.zeros(2))
        (False, True)
        """
        if isinstance(self.shown, bytes):
            return self.shown != as_shown(value, brief=True)
        return self.shown is not None and not same_bits(self.shown, value)


def as_shown(value: np.ndarray, brief: bool) -> np.ndarray | bytes:
    """What later values are compared with: a copy, or a digest if a copy would take the memory that is freed.

    >>> Moment(Life.SHOWN, as_shown(np.ones(2), brief=True)).differs(np.ones(2)), as_shown(np.ones(2), brief=False)
    (False, array([1., 1.]))
    """
    if not brief:
        return np.array(value)
    return hashlib.sha256(np.ascontiguousarray(value).reshape(-1).view(np.uint8)).digest()
