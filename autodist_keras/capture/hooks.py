"""Hooks on instances: how Keras is followed without patching anybody's classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hook(instance: Any, name: str, replacement: Any) -> Iterator[None]:
    """Give one instance another attribute for a while, past whatever tracking its class does."""
    attributes = vars(instance)
    missing = object()
    before = attributes.get(name, missing)
    attributes[name] = replacement
    try:
        yield
    finally:
        if before is missing:
            attributes.pop(name, None)
        else:
            attributes[name] = before
