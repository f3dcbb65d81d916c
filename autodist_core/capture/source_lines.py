"""Where the user's code made the operations of a traced step, for the errors of steps that fail.

In: the graph of a traced step. Out: `SourceLines`, which has the line of the user's own code behind each operation. The
session's graph has the names of these operations, and no lines::

    layer/GatherV2    File "train.py", line 12, in call: return tf.gather(self.table, ids)
"""

from __future__ import annotations

import linecache
import os
import sysconfig
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from autodist_core.capture.tape import graphs_of

_PACKAGES = ("site-packages", "dist-packages")
_ROOT = Path(__file__).parents[2]
_NOT_OF_USERS = (sysconfig.get_paths()["stdlib"], str(_ROOT / "autodist_core"), str(_ROOT / "autodist_keras"))
_GRADIENTS = "gradient_tape/"
"""The name scope of gradients."""


@dataclass(frozen=True)
class SourceLine:
    """The type of an operation, and the innermost line of the user's own code behind it.

    >>> print(SourceLine("GatherV2", "train.py", 12, "call"))
    GatherV2, made at File "train.py", line 12, in call
    """

    operation: str
    file: str = ""
    line: int = 0
    function: str = ""

    def __str__(self) -> str:
        return self.of(self.operation)

    def of(self, operation: str) -> str:
        """The operation, with the line."""
        if not self.file:
            return operation
        code = linecache.getline(self.file, self.line).strip()
        return f'{operation}, made at File "{self.file}", line {self.line}, in {self.function}{code and ": " + code}'


@dataclass(frozen=True)
class SourceLines:
    """The lines that made the operations of a traced step. The module's docstring has an example.

    >>> SourceLines().of("layer/GatherV2")
    'layer/GatherV2'
    """

    _top: Mapping[str, SourceLine] = field(default_factory=dict)
    """The lines of the operations of the step's own graph, by name."""
    _inner: Mapping[str, SourceLine] = field(default_factory=dict)
    """The same for the graphs that these operations run, as the branches of a conditional."""

    def of(self, name: str, inner: bool = False) -> str:
        """The operation of a name, with its line. `inner` says that an operation of the step runs its graph."""
        first, second = (self._inner, self._top) if inner else (self._top, self._inner)
        found = first.get(name) or second.get(name)
        return name if found is None else found.of(f"{found.operation} ({name})")


def source_lines(graph: Any, updates: Collection[str] = ()) -> SourceLines:
    """The lines behind a graph's operations, and of the graphs that these run, without those of gradients and updates.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default() as graph:
    ...     root = tf.sqrt(2.0, name="root")
    >>> source_lines(graph).of("root")
    'Sqrt (root), made at File "<doctest ...>", line 2, in <module>: root = tf.sqrt(2.0, name="root")'
    """
    made = [each for each in graph.get_operations() if each.name not in updates and _GRADIENTS not in each.name]
    # A stack of calls does not outlive its graph.
    return SourceLines(
        {each.name: _source_line(each) for each in made},
        {inner.name: _source_line(inner) for each in made for inner in _within(each)},
    )


def _source_line(operation: Any) -> SourceLine:
    for frame in reversed(operation.traceback or ()):
        file = frame.filename
        if _is_of_user(file):
            return SourceLine(operation.type, file, frame.lineno, frame.name)
    return SourceLine(operation.type)


def _within(operation: Any) -> Iterator[Any]:
    for graph in graphs_of(operation):
        for inner in graph.get_operations():
            yield inner
            yield from _within(inner)


@cache
def _is_of_user(file: str) -> bool:
    parts = file.split(os.sep)
    return not any(package in parts for package in _PACKAGES) and not file.startswith(_NOT_OF_USERS)
