"""Things in groups: those of one group have the same key, and follow each other as before.

In: things, and their keys. Out: the groups by key, in the order of their first things.
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
    return by_key((key(thing), thing) for thing in things)


def by_key(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return the things of pairs of a key and a thing, by key.

    >>> by_key([(1, "kernel"), (0, "bias"), (1, "kappa")])
    {1: ['kernel', 'kappa'], 0: ['bias']}
    """
    found: dict[K, list[T]] = {}
    for key, thing in pairs:
        found.setdefault(key, []).append(thing)
    return found
