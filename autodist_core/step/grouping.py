"""Things in groups: those of one group have the same key, and follow each other as before.

In: things, and a function that gives the key of each. Out: the groups by key, in the order of their first things.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def grouped(things: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the groups by key.

    >>> grouped(["kernel", "bias", "kappa"], lambda name: name[0])
    {'k': ['kernel', 'kappa'], 'b': ['bias']}
    """
    found: dict[K, list[T]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return found
