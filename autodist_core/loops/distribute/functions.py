"""The functions that `run()` has been called with: a function that is made anew for each call is traced once.

In: a Python function. Out: what was made for it, or for another one that does the same: with the same code, equal
defaults, and equal values of what it refers to::

    for batch in batches:
        strategy.run(lambda x: step(x), args=(batch,))     one trace

Values are compared where they cannot change, and lists and dictionaries by what is in them. Other objects are equal to
themselves only, and arrays of NumPy to nothing, since their content may change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Generic, TypeVar

import numpy as np

from autodist_core.loops.arguments import Same, identity

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
            alike = _content(function, {})
            found = self._known.get(alike)
            if found is None:
                found = self._known[alike] = self._make(function)
            self._known[own] = found
        self._known.move_to_end(own)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return found


def _content(value: Any, around: Mapping[int, int]) -> Hashable:
    """A key of a value. `around` has the values that contain this one, to end where a value contains itself."""
    if id(value) in around:
        return around[id(value)]
    around = {**around, id(value): len(around)}
    if isinstance(value, FunctionType):
        cells = [_of_cell(cell, around) for cell in value.__closure__ or ()]
        defaults = _content(value.__defaults__, around), _content(value.__kwdefaults__, around)
        return value.__code__, Same(value.__globals__), *defaults, *cells
    if isinstance(value, MethodType):
        return MethodType, _content(value.__func__, around), Same(value.__self__)
    if isinstance(value, partial):
        return partial, *(_content(part, around) for part in (value.func, value.args, value.keywords))
    if isinstance(value, dict):
        return dict, *((_content(key, around), _content(each, around)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return type(value), *_contents(value, around)
    if isinstance(value, np.ndarray | set | bytearray):
        return Same(object())
    return identity(value)


def _contents(values: Sequence[Any], around: Mapping[int, int]) -> tuple[Hashable, ...]:
    return tuple(_content(value, around) for value in values)


def _of_cell(cell: Any, around: Mapping[int, int]) -> Hashable:
    try:
        return (_content(cell.cell_contents, around),)
    except ValueError:  # nothing is assigned yet
        return ()
