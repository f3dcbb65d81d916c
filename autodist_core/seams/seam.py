"""What a seam is: a name or a behaviour of another package that is not its public API and on which something rests.

In: nothing but the description of a seam. Out: the object behind its name, or an error that says what is wrong. The
seams themselves stand in `autodist_core.seams.table` (TensorFlow, Python) and in `autodist_keras.seams` (Keras).
Nothing of TensorFlow is imported before a seam is examined.
"""

import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from autodist_core.errors import SeamError
from autodist_core.log import log

SUPPORTED: Mapping[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "keras": ((3, 12), (3, 15)), "tensorflow": ((2, 20), (2, 21)),
}
"""The first and the last minor version of each package that is supported: the bounds of setup.cfg."""

_SHOWN = {"keras": "Keras", "tensorflow": "TensorFlow"}


@dataclass(frozen=True)
class Seam:
    """One name, or one behaviour, of another package on which something rests.

    >>> seam = Seam("threading.Thread", "_no_such_name", "waiting for a step")
    >>> seam.label
    'Thread._no_such_name'
    >>> seam.get()
    Traceback (most recent call last):
    autodist_core.errors.SeamError: Python 3... has no Thread._no_such_name, on which waiting for a step rests. ...
    """

    owner: str
    """The module or the class, by its dotted name."""
    name: str
    """The name that the owner has, or a behaviour in words."""
    rests: str
    """What rests on it."""
    at_use: bool = False
    """For a behaviour that only a real step shows: the code that relies on it raises `error()` where it fails."""

    @property
    def label(self) -> str:
        """The name as messages show it."""
        if " " in self.name:
            return repr(self.name)
        last = self.owner.rpartition(".")[2]
        return f"{last if last[:1].isupper() else self.owner}.{self.name}"

    def get(self) -> Any:
        """The object behind the name; a SeamError where it is missing."""
        try:
            return getattr(owner(self.owner), self.name)
        except (AttributeError, ImportError):
            raise SeamError(self._said(f"has no {self.label}")) from None

    def error(self, found: str) -> SeamError:
        """The error for a behaviour that does not hold where it is relied on."""
        return SeamError(self._said(f"does not behave as {self.label} ({found})"))

    def _said(self, wrong: str) -> str:
        root = self.owner.partition(".")[0]
        version = getattr(sys.modules.get(root), "__version__", "") if root in SUPPORTED else sys.version
        package = f"{_SHOWN.get(root, 'Python')} {version.partition(' ')[0]}"
        return f"{package} {wrong}, on which {self.rests} rests{_supported(root)}"


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


def _supported(root: str) -> str:
    if root not in SUPPORTED:
        return ""
    first, last = (".".join(map(str, version)) for version in SUPPORTED[root])
    return f"; supported: {first} to {last}"


def examine(table: Iterable[Seam], *packages: str) -> None:
    """Raise a SeamError that lists the names of a table that are missing.

    Where none is missing, log it if a package is of a version on which the tests have not run: how the names behave
    there is unknown.

    >>> examine([Seam("threading.Thread", "_no_such_name", "waiting")])
    Traceback (most recent call last):
    autodist_core.errors.SeamError: Python 3... has no Thread._no_such_name, on which waiting rests. ...
    """
    problems: list[str] = []
    for seam in table:
        try:
            if not seam.at_use:
                seam.get()
        except SeamError as missing:
            problems += missing.problems
    if problems:
        raise SeamError(*problems)
    for package in packages:
        version = import_module(package).__version__
        first, last = SUPPORTED[package]
        if not first <= tuple(map(int, version.split(".")[:2])) <= last:
            log.warning(
                "%s %s is installed, on which autodist-keras was not tested%s. The names that it needs are there; "
                "compare with one device before you rely on its numbers: verify(x, y).",
                _SHOWN[package], version, _supported(package),
            )
