"""Things that are reached from others, one after the other, each once.

In: the first things, and a function that says where one leads. Out: all things that are reached.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def reached(start: Iterable[K], following: Callable[[K], Iterable[K]]) -> list[K]:
    """Return the things of `start`, and all things that `following` leads to from them.

    >>> sources = {"loss": ["predictions", "labels"], "predictions": ["kernel"], "step": ["rate"]}
    >>> sorted(reached(["loss"], lambda name: sources.get(name, [])))
    ['kernel', 'labels', 'loss', 'predictions']
    """
    found: dict[K, None] = {}
    waiting = list(start)
    while waiting:
        thing = waiting.pop()
        if thing not in found:
            found[thing] = None
            waiting.extend(following(thing))
    return list(found)
