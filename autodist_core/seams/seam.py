"""What a seam is: a name or a behaviour of another package that is not its public API and on which something rests.

In: nothing but the description of a seam. Out: one sentence that says what is wrong with it, or nothing. The seams
themselves stand in `autodist_core.seams.table` (TensorFlow, Python) and in `autodist_keras.seams` (Keras). Nothing of
TensorFlow is imported before a seam is examined.
"""

import dis
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import CodeType
from typing import Any

from autodist_core.errors import SeamError
from autodist_core.log import log

SUPPORTED: Mapping[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "keras": ((3, 12), (3, 15)), "tensorflow": ((2, 20), (2, 21)),
}
"""The first and the last minor version of each package that is supported: the bounds of setup.cfg."""

_STORE_ATTR = dis.opmap["STORE_ATTR"]
_SHOWN = {"keras": "Keras", "tensorflow": "TensorFlow"}

ATTRIBUTE = "attribute"
"""A name that a module or a class has."""
STORED = "attribute of instances"
"""A name that a method of the class assigns on `self`."""
TEXT = "text"
"""A string constant that one of the `callers` writes, and by which something is recognised."""
BEHAVIOUR = "behaviour"
"""Something that a small trial shows in `check()`."""
AT_USE = "behaviour, tried at use"
"""Something that only a real step shows: the code that relies on it raises `error()` where it does not hold."""


@dataclass(frozen=True)
class Seam:
    """One name, or one behaviour, of another package on which something rests.

    >>> seam = Seam("threading.Thread", "_no_such_name", "waiting for a step")
    >>> seam.label, seam.kind
    ('Thread._no_such_name', 'attribute')
    >>> print(seam.problem().partition(" has ")[2])
    no Thread._no_such_name, on which waiting for a step rests
    """

    owner: str
    """The module or the class, by its dotted name."""
    name: str
    rests: str
    """What rests on it."""
    kind: str = ATTRIBUTE
    parameters: tuple[str, ...] | None = None
    """The parameters of a method that a hook replaces; None where nothing is replaced."""
    callers: tuple[str, ...] = ()
    """Methods that must use the name, because a hook on it has no effect otherwise: of the owner, or by dotted name."""
    probe: Callable[[], str] | None = None
    """For a behaviour: the trial. It returns what is wrong, or nothing."""

    @property
    def label(self) -> str:
        """The name as messages show it."""
        if self.kind in (TEXT, BEHAVIOUR, AT_USE):
            return repr(self.name)
        last = self.owner.rpartition(".")[2]
        return f"{last if last[:1].isupper() else self.owner}.{self.name}"

    def get(self) -> Any:
        """The object behind the name; a SeamError where it is missing."""
        try:
            return getattr(owner(self.owner), self.name)
        except (AttributeError, ImportError):
            raise SeamError(self.problem()) from None

    def problem(self) -> str:
        """What is wrong with the seam, as one sentence without its full stop; empty where all is well."""
        wrong = self._wrong()
        return self._said(wrong) if wrong else ""

    def error(self, found: str) -> SeamError:
        """The error for a behaviour that does not hold where it is relied on."""
        return SeamError(self._said(f"does not behave as {self.label} ({found})"))

    def _said(self, wrong: str) -> str:
        root = self.owner.partition(".")[0]
        version = getattr(sys.modules.get(root), "__version__", "") if root in SUPPORTED else sys.version
        package = f"{_SHOWN.get(root, 'Python')} {version.partition(' ')[0]}"
        return f"{package} {wrong}, on which {self.rests} rests{_supported(root)}"

    def _wrong(self) -> str:
        if self.kind == AT_USE:
            return ""
        if self.probe is not None:
            try:
                found = self.probe()
            except Exception as error:
                found = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            return f"does not behave as {self.label} ({found})" if found else ""
        try:
            found_owner = owner(self.owner)
        except (AttributeError, ImportError):
            return f"has no {self.label}"
        if self.kind == STORED:
            stored = _stores(found_owner, self.name)
            return self._wrong_callers(found_owner) if stored else f"has no {self.label}"
        if self.kind == TEXT:
            writers = [getattr(found_owner, caller, None) for caller in self.callers]  # one that is gone writes nothing
            written = any(self.name in code.co_consts for writer in writers for code in codes(writer))
            return "" if written else f"does not write {self.label} in {self.owner}"
        if not hasattr(found_owner, self.name):
            return f"has no {self.label}"
        if self.parameters is not None:
            taken = tuple(inspect.signature(getattr(found_owner, self.name)).parameters)
            if taken != self.parameters:
                return f"has another {self.label}: its parameters are {taken}, not {self.parameters}"
        return self._wrong_callers(found_owner)

    def _wrong_callers(self, found_owner: Any) -> str:
        for caller in self.callers:
            where, _, method = caller.rpartition(".")
            function = getattr(owner(where) if where else found_owner, method, None)  # one that is gone uses nothing
            if not any(self.name in code.co_names for code in codes(function)):
                return f"does not use {self.label} in {caller}"
        return ""


@cache
def owner(dotted: str) -> Any:
    """The module or class of a dotted name.

    >>> owner("threading.Thread").__name__
    'Thread'
    """
    first, *rest = dotted.split(".")
    found, path = import_module(first), first
    for part in rest:
        path = f"{path}.{part}"
        if hasattr(found, part):
            found = getattr(found, part)
        elif inspect.ismodule(found):
            found = import_module(path)
        else:
            raise AttributeError(f"{path} is missing")
    return found


def functions(kind: type) -> Iterator[Any]:
    """The functions that a class and its bases define, without what decorators put around them.

    >>> import threading
    >>> "start" in {function.__name__ for function in functions(threading.Thread)}
    True
    """
    for base in kind.__mro__[:-1]:
        for value in vars(base).values():
            parts = (value.fget, value.fset) if isinstance(value, property) else (value,)
            for part in parts:
                function = inspect.unwrap(getattr(part, "__func__", part)) if callable(part) else None
                if inspect.isfunction(function):
                    yield function


def codes(function: Any) -> Iterator[CodeType]:
    """The code of a function and of those that it defines; none for what has no Python code.

    >>> def outer():
    ...     def inner(): ...
    >>> [code.co_name for code in codes(outer)]
    ['outer', 'inner']
    """
    if isinstance(function, property):
        function = function.fget
    function = inspect.unwrap(function) if callable(function) else function
    waiting = [getattr(function, "__code__", None)]
    while waiting:
        code = waiting.pop()
        if code is not None:
            yield code
            waiting.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))


def _stores(kind: type, name: str) -> bool:
    """Whether a method of a class assigns an attribute of this name.

    An instruction is a byte for the operation and one for its argument, here the position of the name.
    """
    return any(
        (_STORE_ATTR, code.co_names.index(name) & 0xFF) in zip(code.co_code[::2], code.co_code[1::2], strict=True)
        for function in functions(kind) for code in codes(function) if name in code.co_names
    )


def _supported(root: str) -> str:
    if root not in SUPPORTED:
        return ""
    first, last = (".".join(map(str, version)) for version in SUPPORTED[root])
    return f"; supported: {first} to {last}"


def examine(table: Iterable[Seam], *packages: str) -> None:
    """Raise a SeamError that lists what is wrong with the seams of a table.

    Where nothing is wrong, log it if a package is of a version on which the tests have not run.

    >>> examine([Seam("threading.Thread", "_no_such_name", "waiting")])
    Traceback (most recent call last):
    autodist_core.errors.SeamError: Python 3... has no Thread._no_such_name, on which waiting rests. ...
    """
    if problems := [problem for seam in table if (problem := seam.problem())]:
        raise SeamError(*problems)
    for package in packages:
        version = import_module(package).__version__
        first, last = SUPPORTED[package]
        if not first <= tuple(map(int, version.split(".")[:2])) <= last:
            log.warning(
                "%s %s is installed, on which autodist-keras was not tested%s. What it needs of it is there; compare "
                "with one device before you rely on its numbers: verify(x, y).",
                _SHOWN[package], version, _supported(package),
            )
