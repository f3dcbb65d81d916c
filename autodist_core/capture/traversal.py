"""Walks over the operations of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def sources(operation: Any) -> Iterable[Any]:
    """The operations that an operation reads."""
    return (tensor.op for tensor in operation.inputs)


def readers(operation: Any) -> Iterable[Any]:
    """The operations that read an operation."""
    return (reader for output in operation.outputs for reader in output.consumers())


def reached_from(
    start: Iterable[Any], following: Callable[[Any], Iterable[Any]], stop: Callable[[Any], bool] = lambda _: False
) -> dict[str, Any]:
    """Some operations and all that follow from them, by name; those at which to stop are left out."""
    found: dict[str, Any] = {}
    waiting = list(start)
    while waiting:
        operation = waiting.pop()
        if operation.name not in found and not stop(operation):
            found[operation.name] = operation
            waiting.extend(following(operation))
    return found


def computed_from(tensors: Iterable[Any]) -> frozenset[str]:
    """The names of the operations that make some tensors or compute with them."""
    return frozenset(reached_from((tensor.op for tensor in tensors), readers))
