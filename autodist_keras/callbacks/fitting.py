"""Find a `Resume` callback among the arguments of `fit`, and run Keras's `fit` inside a `ResumableFit`.

In: the arguments of `DistributedModel.fit`. Out: the arguments for Keras's `fit`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from autodist_keras.callbacks.resumable import ResumableFit
from autodist_keras.callbacks.resume import Resume


@contextmanager
def resumable(front: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The arguments with which Keras's `fit` runs in this block; inside a `ResumableFit` if there is a `Resume`.

    >>> from autodist_keras.callbacks.resume import Resume
    >>> with resumable(None, (), {"epochs": 2}) as (args, kwargs):
    ...     args, kwargs
    ((), {'epochs': 2})
    >>> with resumable(None, (), {"callbacks": [Resume("first"), Resume("second")]}):
    ...     pass
    Traceback (most recent call last):
    ValueError: fit(callbacks=...): expected one Resume callback. Received: 2.
    """
    arguments, callbacks = _arguments(args, kwargs)
    found = [callback for callback in callbacks if isinstance(callback, Resume)]
    if not found or found[0].running is not None:
        yield args, kwargs
        return
    _require_fit(found, callbacks, arguments)
    others = [callback for callback in callbacks if callback is not found[0]]
    fit = ResumableFit(front, found[0], arguments, others)
    with fit.running():
        # The callback comes first: its `on_train_end` sees what the training left, before others change it.
        yield (), {**arguments, "callbacks": [found[0], *others]}


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The arguments of `fit` by name, and its callbacks; none if they are not those of Keras's `fit`."""
    try:
        arguments = inspect.signature(keras.Model.fit).bind(None, *args, **kwargs).arguments
    except TypeError:
        return {}, []
    arguments.pop("self")
    callbacks = arguments.get("callbacks")
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    return dict(arguments), keras.tree.flatten(callbacks) if callbacks else []


def _require_fit(found: list[Any], callbacks: list[Any], arguments: dict[str, Any]) -> None:
    if len(found) > 1:
        raise ValueError(f"fit(callbacks=...): expected one Resume callback. Received: {len(found)}.")
    if isinstance(arguments["callbacks"], keras.callbacks.CallbackList):
        raise ValueError("fit(callbacks=...): Resume needs a list of callbacks. Received: a CallbackList.")
    if any(isinstance(callback, keras.callbacks.BackupAndRestore) for callback in callbacks):
        raise ValueError(
            "fit(callbacks=...): BackupAndRestore and Resume both decide where the training begins. Leave "
            "BackupAndRestore out: Resume keeps what it keeps, and more."
        )
