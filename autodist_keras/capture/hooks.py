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


@contextmanager
def undone_if_refused(instance: Any) -> Iterator[None]:
    """Give an instance back the attributes that it had, where what runs meanwhile raises.

    >>> class Model: optimizer = None
    >>> model = Model()
    >>> with undone_if_refused(model):
    ...     model.optimizer = "sgd"
    ...     raise ValueError("metrics: expected a list")
    Traceback (most recent call last):
    ValueError: metrics: expected a list
    >>> vars(model)
    {}
    """
    attributes = vars(instance)
    before = dict(attributes)
    try:
        yield
    except BaseException:
        for name in attributes.keys() - before.keys():
            del attributes[name]
        attributes.update(before)
        raise
