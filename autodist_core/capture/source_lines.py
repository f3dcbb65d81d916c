"""Where a program made the operations of a traced step, for notes on them and for the errors of steps that fail.

In: the graph of a traced step. Out: `SourceLines`, which has the innermost line behind each operation that is not of a
library (`is_of_library`). The session's graph has the names of these operations, and no lines::

    layer/GatherV2    File "train.py", line 12, in call: return tf.gather(self.table, ids)
"""

import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from autodist_core.capture.tape import graphs_of
from autodist_core.errors import CaptureError, NotYetError

_OWN = tuple(str(Path(__file__).parents[2] / name) + os.sep for name in ("autodist_core", "autodist_keras"))
_TRACES = str(Path(__file__).with_name("concrete.py"))
"""The file whose frame stands where a trace begins."""
_LIBRARIES = ("keras", "numpy", "optree", "tensorflow", "tf_keras", "wrapt")
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_GRADIENTS = "gradient_tape/"
"""The name scope of gradients."""


@dataclass(frozen=True)
class SourceLine:
    """The type of an operation, and the innermost line behind it that is not of a library.

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
        return f"{operation}, made at {self.place}{code and ': ' + code}"

    @property
    def place(self) -> str:
        """The line as Python's tracebacks show it; nothing if it is not known."""
        return f'File "{self.file}", line {self.line}, in {self.function}' if self.file else ""


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

    @contextmanager
    def told(self) -> Iterator[None]:
        """Add to a refusal that the block raises the lines of the operations that it names.

        >>> lines = SourceLines({"root": SourceLine("Sqrt", "train.py", 12, "call")})
        >>> with lines.told():
        ...     raise CaptureError("the update reads 'root'.")
        Traceback (most recent call last):
        autodist_core.errors.CaptureError: the update reads 'root'.
        The operation is Sqrt (root), made at File "train.py", line 12, in call
        """
        try:
            yield
        except (CaptureError, NotYetError) as error:
            named = dict.fromkeys(re.findall(r"(?<!\w)'([^'\n]+)'", str(error)))
            for name in named:
                found = self._top.get(name)
                if found is not None and found.file and found.place not in str(error):
                    error.args = (f"{error}\nThe operation is {self.of(name)}",)
            raise


def source_lines(graph: Any) -> SourceLines:
    """The lines behind a graph's operations, and of the graphs that these run, without those of gradients.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default() as graph:
    ...     root = tf.sqrt(2.0, name="root")
    >>> source_lines(graph).of("root")
    'Sqrt (root), made at File "<doctest ...>", line 2, in <module>: root = tf.sqrt(2.0, name="root")'
    """
    made = [each for each in graph.get_operations() if _GRADIENTS not in each.name]
    # A stack of calls does not outlive its graph. Many operations have equal ones, and to read one takes long.
    known: dict[Any, Any] = {}
    return SourceLines(
        {each.name: _line(each, known) for each in made},
        {inner.name: _line(inner, known) for each in made for inner in _within(each)},
    )


def source_line(operation: Any) -> SourceLine:
    """The line that made an operation of a traced step. What calls the trace has made nothing, such as `model.fit`.

    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     source_line(tf.sqrt(2.0).op).place
    'File "<doctest ...>", line 2, in <module>'
    """
    return _line(operation, {})


def _line(operation: Any, known: dict[Any, Any]) -> SourceLine:
    stack = operation.traceback
    frame = known.get(stack, known)  # looked up once: to compare stacks takes most of the time
    if frame is known:
        frame = known[stack] = _users_frame(list(stack or ()))
    return SourceLine(operation.type, *(() if frame is None else (frame.filename, frame.lineno, frame.name)))


def _users_frame(frames: list[Any]) -> Any:
    files = [frame.filename for frame in frames]
    if _TRACES in files:
        frames = frames[len(files) - files[::-1].index(_TRACES) :]
    elif any(file.startswith(_OWN) for file in files):
        # This package has put the operation in the place of another one.
        frames = []
    return next((frame for frame in reversed(frames) if not is_of_library(frame.filename)), None)


def _within(operation: Any) -> Iterator[Any]:
    for graph in graphs_of(operation):
        for inner in graph.get_operations():
            yield inner
            yield from _within(inner)


@cache
def is_of_library(file: str) -> bool:
    """Whether a file is of TensorFlow, Keras, this package or Python, and so says nothing about the user's program.

    A package that is built on them is a part of the program.

    >>> import numpy
    >>> is_of_library(numpy.__file__), is_of_library("/lib/python3/site-packages/models/loss.py")
    (True, False)
    """
    loaded = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    roots = tuple(str(Path(each).parent) + os.sep for each in loaded if each)
    standard = file.startswith(_STANDARD) and not any(name in file.split(os.sep) for name in _INSTALLED)
    return standard or file.startswith((*_OWN, *roots, "<frozen ", "<__array_function__ "))
