"""What the code of a function reaches by names, as a key: functions of equal keys do the same.

In: a Python function. Out: a key with its code, its defaults, and the values of the variables around it, global ones
included, that the code names. Functions that it names are followed, and so are the attributes that it names::

    lambda x: helper(x) * settings.rate     the code of `helper`, what that reaches, and the number `settings.rate`

Values are compared where they cannot change. Lists, dictionaries, sets and arrays are compared by what is in them.
Other objects are equal to themselves only. Functions of installed packages are not followed.
"""

from __future__ import annotations

import dis
import site
import sysconfig
from collections.abc import Hashable, Iterator, Mapping
from functools import cache, lru_cache, partial
from hashlib import blake2b
from inspect import getattr_static
from pathlib import Path
from types import CodeType, FunctionType, MemberDescriptorType, MethodType
from typing import Any

import numpy as np

from autodist_core.loops.calls.arguments import Same, identity

_MISSING = object()
_KEPT = 1000
_OF_VARIABLE = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FAST")
_WRITES = ("STORE_GLOBAL", "STORE_DEREF")
_OF_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_CALLED = ("__call__", "call")
"""The methods that run when an object is called, the second one by Keras."""


def content(function: Any) -> Hashable:
    """The key of a function.

    >>> rate = 1.0
    >>> def made():
    ...     return lambda x: x * rate
    >>> before, after = content(made()), content(made())
    >>> rate = 2.0
    >>> before == after, before == content(made())
    (True, False)
    """
    return _Content().of(function)


class _Content:
    """The key of one function. What was seen before is named by its number."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, int] = {}
        """The values that were followed: `Same` keeps them, so that no other one gets their `id`."""

    def of(self, value: Any) -> Hashable:
        """The key of a value."""
        if isinstance(value, FunctionType):
            return self._of_function(value)
        if isinstance(value, MethodType) and isinstance(value.__func__, FunctionType):
            return MethodType, Same(value.__self__), self._of_function(value.__func__, value.__self__)
        if isinstance(value, partial):
            return self._once(value, lambda: (partial, *map(self.of, (value.func, value.args, value.keywords))))
        if isinstance(value, dict):
            return self._once(value, lambda: (dict, *((self.of(key), self.of(each)) for key, each in value.items())))
        if isinstance(value, list | tuple):
            return self._once(value, lambda: (type(value), *map(self.of, value)))
        if isinstance(value, set | frozenset):
            return type(value), frozenset(map(identity, value))
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            return type(value), value.dtype.str, value.shape, blake2b(value.tobytes()).digest()
        if isinstance(value, np.ndarray | bytearray):
            return Same(object())
        return identity(value), *(self._of_function(called, value) for called in _called(Same(type(value))))

    def _once(self, value: Any, key: Any) -> Hashable:
        number = self._seen.setdefault(Same(value), len(self._seen))
        return key() if number == len(self._seen) - 1 else number

    def _of_function(self, function: FunctionType, own: Any = _MISSING) -> Hashable:
        """The key of a function, which may be the method of an object."""
        number = self._seen.get(both := (Same(function), Same(own)))
        if number is not None:
            return number
        self._seen[both] = len(self._seen)
        code, around = function.__code__, self._around(function)
        key = [code, Same(function.__globals__), self.of(function.__defaults__), self.of(function.__kwdefaults__)]
        if _is_installed(function):
            return *key, *(self.of(value) for value in around.values())
        bound = own is not _MISSING and code.co_argcount > 0
        return *key, *self._reached(function, {**around, **({code.co_varnames[0]: own} if bound else {})})

    def _around(self, function: FunctionType) -> dict[str, Any]:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        return {name: _in_cell(cell) for name, cell in cells}

    def _reached(self, function: FunctionType, around: Mapping[str, Any]) -> Iterator[Hashable]:
        for is_global, name, *attributes in _names(function.__code__):
            value = function.__globals__.get(name, _MISSING) if is_global else around.get(name, _MISSING)
            yield self.of(value) if value is not _MISSING else None
            for attribute in attributes:
                owner, value = value, _attribute(value, attribute)
                if value is _MISSING:
                    break
                if not isinstance(value, FunctionType):
                    yield self.of(value)
                elif _is_installed(value):
                    yield Same(value)
                else:
                    is_method = attribute not in getattr(owner, "__dict__", {})
                    yield self._of_function(value, owner if is_method else _MISSING)


def _in_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is assigned yet
        return _MISSING


def _attribute(value: Any, name: str) -> Any:
    """The attribute of an object if it is there without a call of a property or of another function."""
    found = getattr_static(value, name, _MISSING)
    if isinstance(found, MemberDescriptorType):
        return getattr(value, name, _MISSING)
    if isinstance(found, staticmethod | classmethod):
        return found.__func__
    return found


@cache
def _places() -> tuple[str, ...]:
    paths = (sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    here = str(Path(__file__).parents[2])
    return (*paths, *site.getsitepackages(), site.getusersitepackages(), here)


def _is_installed(function: FunctionType) -> bool:
    """Whether a function is one of Python's library, of an installed package, or of this one.

    >>> _is_installed(dis.dis), _is_installed(content), _is_installed(lambda: None)
    (True, True, False)
    """
    return function.__code__.co_filename.startswith(_places())


@lru_cache(_KEPT)
def _called(kind: Same) -> tuple[FunctionType, ...]:
    """What runs when an object of this class is called, as far as it is followed."""
    found = (getattr_static(kind.value, name, None) for name in _CALLED)
    return tuple(each for each in found if isinstance(each, FunctionType) and not _is_installed(each))


@lru_cache(_KEPT)
def _names(code: CodeType) -> tuple[tuple[Any, ...], ...]:
    """The variables that a code reads and does not write, each with the attributes that it reads one behind the other.

    >>> _names((lambda: settings.sub.rate).__code__)
    ((True, 'settings', 'sub', 'rate'),)
    """
    found: dict[tuple[Any, ...], None] = {}
    current: list[Any] = []
    written: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _OF_ATTRIBUTE and current:
            current.append(instruction.argval)
        elif instruction.opname != "EXTENDED_ARG":
            found[tuple(current)] = None
            current = []
            if instruction.opname in _WRITES:
                written.add(instruction.argval)
            # From Python 3.13 on, one instruction may store or load a variable before it loads this one.
            if instruction.opname.startswith(_OF_VARIABLE) or instruction.opname.endswith("_LOAD_FAST"):
                name = instruction.argval[-1] if isinstance(instruction.argval, tuple) else instruction.argval
                current = [instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"), name]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            # A variable of the inner function is none of the outer one, even if it has the same name.
            inner = (each for each in _names(constant) if each[0] or each[1] in constant.co_freevars)
            found.update(dict.fromkeys(inner))
    return tuple(each for each in found if each and each[1] not in written)
