"""Find out which variables a traced function reads or writes besides `run()`.

In: the graph in which `run()` is traced, and the variables of the function that it runs. Out: those of the variables
that other operations of the graph, or of a graph around it, take. Such an operation does not ask the variable: after
each run, the variable must have its current value.
"""

import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from autodist_core.capture.traversal import function_graphs
from autodist_core.training import Entry

_RUN = {"EagerPyFunc"}
_AROUND = {"While", "StatelessWhile"}


class ReadElsewhere:
    """The variables that operations besides `run()` take. They are found at the first run, when the trace is done.

    >>> import tensorflow as tf
    >>> from autodist_core.loops.variables import Variables
    >>> read, other = tf.Variable(1.0, name="read"), tf.Variable(1.0, name="other")
    >>> step = tf.function(lambda: 2.0 * read).get_concrete_function()
    >>> known = Variables()
    >>> [entry.spec.name for entry in ReadElsewhere(step.graph, [known.entry(read), known.entry(other)]).entries]
    ['read']
    """

    def __init__(self, graph: Any, entries: Sequence[Entry]) -> None:
        self._graph = weakref.ref(graph)
        self._entries = entries

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The variables. If the graph is gone, all of them."""
        graph = self._graph()
        if graph is None:
            return tuple(self._entries)
        return tuple(entry for entry in self._entries if _is_read(graph, entry.handle))


def _is_read(graph: Any, handle: Any) -> bool:
    """Whether an operation of the graph, or of a graph around it, takes a handle besides those that lead to `run()`."""
    known = {id(handle)}
    for depth, each in reversed(list(enumerate(function_graphs(graph)))):
        for value, placeholder in each.captures:
            if id(value) not in known:
                continue
            known.add(id(placeholder))
            takers = list(placeholder.consumers())
            if any(taker.type not in (_RUN | _AROUND if depth else _RUN) for taker in takers):
                return True
            if sum(taker.type in _AROUND for taker in takers) > 1:
                return True
    return False
