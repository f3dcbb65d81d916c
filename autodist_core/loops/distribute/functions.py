"""The functions that `run()` has been called with: a function that is made anew for each call is traced once.

In: a Python function. Out: what was made for it, or for another one that does the same, by `content` of `reached.py`::

    for batch in batches:
        strategy.run(lambda x: step(x), args=(batch,))     one trace, until `step` is another function
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from types import MethodType
from typing import Any, Generic, TypeVar

from autodist_core.loops.calls.arguments import Same
from autodist_core.loops.distribute.reached import content

V = TypeVar("V")
_KEPT = 64


class Functions(Generic[V]):
    """What is made for each function. What was not used for long is forgotten.

    >>> known = Functions(lambda function: [])
    >>> one, other = (known.get(lambda x: x + number) for number in (1, 2))
    >>> one is other
    False
    >>> one, other = (known.get(lambda x: x + 3) for _ in range(2))
    >>> one is other
    True
    >>> for number in range(_KEPT):
    ...     _ = known.get(lambda x, number=number: x + number)
    >>> known.get(lambda x: x + 3) is one
    False
    """

    def __init__(self, make: Callable[[Any], V]) -> None:
        self._make = make
        self._known: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, function: Any) -> V:
        """What was made for a function, or is made now."""
        method = isinstance(function, MethodType)
        own = (Same(function.__self__), Same(function.__func__)) if method else Same(function)
        found = self._known.get(own)
        if found is None:
            alike = content(function)
            found = self._known.get(alike)
            if found is None:
                found = self._make(function)
            self._keep(alike, found)
        self._keep(own, found)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return found

    def _keep(self, key: Hashable, found: V) -> None:
        self._known[key] = found
        self._known.move_to_end(key)
