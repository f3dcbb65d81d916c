"""How a step is captured: what an earlier trace of it told of its losses.

In: what was followed in a trace (`mixing.py`). Out: a `Decided`, with which `tracing.py` traces the step once more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autodist_keras.capture import mixing


@dataclass(frozen=True)
class Decided:
    """How a step is captured: what an earlier trace of it told of its losses. `Trace` explains these parts.

    >>> Decided().more(mixing.Followed(mixing.Found(), (), frozenset(), ((1,),)), False).degrees
    ((1,),)
    """

    of_whole_batch: frozenset[int] = frozenset()
    adds: bool = False
    degrees: tuple[tuple[int | None, ...], ...] = ()
    draws_as_one: bool = False
    """What was asked for."""

    def more(self, followed: mixing.Followed, adds: bool) -> Decided:
        """What is known after another trace."""
        degrees = followed.degrees if not self.degrees and any(map(any, followed.degrees)) else self.degrees
        more = self.of_whole_batch | followed.of_whole_batch
        return replace(self, of_whole_batch=more, adds=self.adds or adds, degrees=degrees)
