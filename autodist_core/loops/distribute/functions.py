"""The functions that `run()` has been called with: a function that is made anew for each call is traced once.

In: a Python function. Out: what was made for it, or for another one with the same code and the same around it::

    for batch in batches:
        strategy.run(lambda x: step(x), args=(batch,))     one trace, until `step` is another function

Around a function are the variables of the functions outside it, and the global ones that its code names, with the
attributes that it names. Functions and methods of the same module are followed. Lists, dictionaries and arrays are
compared by what is in them, and any other object by its attributes that are named: others may change unseen.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from dis import get_instructions
from functools import partial
from hashlib import blake2b
from inspect import getattr_static
from itertools import chain
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Generic, TypeVar

import numpy as np

from autodist_core.loops.calls.arguments import identity
from autodist_core.step.same import Same

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
        # A function that is called again is known by itself, whatever its variables are now.
        method = isinstance(function, MethodType)
        own = (Same(function.__self__), Same(function.__func__)) if method else Same(function)
        found = self._known.get(own)
        if found is None:
            alike = _Content(getattr(getattr(function, "func", function), "__globals__", {})).of(function)
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


class _Content:
    """Keys of what functions of a module do.

    >>> def content(rate):
    ...     return _Content(globals()).of(lambda x: x * rate)
    >>> content(1.0) == content(1.0), content(1.0) == content(2.0)
    (True, False)
    >>> def halved(x):
    ...     return halved(x / 2) if x > 1 else x
    >>> content(halved) == content(halved)
    True
    """

    def __init__(self, module: dict[str, Any]) -> None:
        self._module = module
        self._seen: dict[Hashable, int] = {}
        """The values that were followed: one that has itself inside is named by its number there."""

    def of(self, value: Any, names: frozenset[str] = frozenset()) -> Hashable:
        """The key of a value that is used by code with these names."""
        own = identity(value)
        if not isinstance(own, Same):
            return own
        before = len(self._seen)
        number = self._seen.setdefault((own, names), before)
        return number if number < before else tuple(self._parts(value, names))

    def _parts(self, value: Any, names: frozenset[str]) -> Iterator[Hashable]:
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            yield type(value), value.dtype.str, value.shape, blake2b(value.tobytes()).digest()
            return
        inside: Iterable[Any] = ()
        if isinstance(value, FunctionType) and value.__globals__ is self._module:
            yield value.__code__
            names = _names(value.__code__)
            inside = _around(value, names)
        elif isinstance(value, MethodType) and isinstance(value.__func__, FunctionType):
            yield MethodType
            inside, names = (value.__func__, value.__self__), _names(value.__func__.__code__)
        elif isinstance(value, partial):
            yield partial
            inside = value.func, value.args, value.keywords
        elif isinstance(value, list | tuple | dict):
            yield type(value)
            inside = chain(*value.items()) if isinstance(value, dict) else value
        else:
            yield Same(value)
            if not isinstance(value, ModuleType):
                inside = self._attributes(value, names)
        for each in inside:
            yield self.of(each, names)

    def _attributes(self, value: Any, names: frozenset[str]) -> Iterator[Any]:
        """What an object has by these names, and the methods of the module that they call."""
        own = getattr(value, "__dict__", {})
        for name in sorted(names | {"__call__", "call"}):
            method = getattr_static(type(value), name, None)
            if isinstance(method, FunctionType) and method.__globals__ is self._module:
                yield MethodType(method, value)
            elif name in own:
                yield own[name]


def _around(function: FunctionType, names: frozenset[str]) -> Iterator[Any]:
    """The variables around a function, and its defaults."""
    yield from (function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # nothing is assigned yet
            yield cell.cell_contents
    for name in sorted(names & function.__globals__.keys()):
        yield function.__globals__[name]


def _names(code: CodeType) -> frozenset[str]:
    """The names of the global variables and attributes that a code, or one in it, reads and does not write.

    >>> sorted(_names(compile("total.steps += rate", "cell", "exec")))
    ['rate', 'total']
    """
    written = {each.argval for each in get_instructions(code) if each.opname.startswith("STORE_")}
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*inner) - written
