"""Resume: a `fit` that was killed goes on at the exact step when the program is started again.

In: a folder, and how often to save. Out: states in the folder. `DistributedModel.fit` finds the callback among its
callbacks, and runs Keras's loop inside a `ResumableFit`, which does the work.
"""

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

import keras

from autodist_core.errors import did_you_mean
from autodist_keras.callbacks.resume.resumable_fit import ResumableFit

_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_EVERY = ("auto", "epoch")


class Resume(keras.callbacks.Callback):
    """Save the state of a training while it runs, and go on from the newest state when the program is started again.

    A state has everything on which the rest of the training depends: the variables of model, optimizer and metrics, the
    compressors' state, seeds, the position in the data, the state of the other callbacks, and the numbers of epoch and
    step. So a training that was killed and started again ends with the numbers of one that was not. A training that
    has ended is not run again: `fit` returns its history, and the model has its weights.

    Args:
        folder: Where the states are. Every `fit` of a program needs a folder of its own. Delete the folder to train
            from the start.
        every: A number of batches, "epoch" for the beginning of each epoch, or "auto": as often as saving costs at most
            2 % of the time, as measured, and at most once in a second. With a number or "epoch", the training waits
            while the state before is being written.
        keep: How many states stay in the folder.

    A file is written in the background, and counts when it is complete. The cluster and the strategy may be others
    after a failure. Other data, another model or other arguments of `fit` and `compile` are refused.

    A callback of your own takes part by its attributes and those of its class: numbers, strings, None, arrays, and
    lists, tuples and dictionaries of them are saved. If it has `get_state()` and `set_state(state)`, these are called
    instead.

    >>> import tempfile
    >>> import numpy as np
    >>> from autodist_core import ResourceSpec
    >>> from autodist_keras import DistributedModel
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> with tempfile.TemporaryDirectory() as folder, DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
    ...     dm.compile("sgd", "mse")
    ...     history = dm.fit(np.ones((8, 3)), np.zeros((8, 1)), epochs=2, verbose=0, callbacks=[Resume(folder)])
    >>> history.epoch
    [0, 1]
    """

    def __init__(self, folder: str | PathLike[str], every: int | str = "auto", keep: int = 2) -> None:
        super().__init__()
        if not isinstance(folder, str | PathLike) or not str(folder):
            raise ValueError(f"Resume({folder!r}): expected the path of a folder.")
        if _REMOTE.match(str(folder)):
            raise ValueError(
                f"Resume({str(folder)!r}): expected a folder of a file system. Pass one that the next start finds, "
                "such as a mounted one."
            )
        if not (every in _EVERY or (type(every) is int and every > 0)):
            hint = did_you_mean(every, _EVERY) if isinstance(every, str) else ""
            raise ValueError(f"Resume(every={every!r}): expected a number of batches above 0, 'epoch' or 'auto'.{hint}")
        if not (type(keep) is int and keep > 0):
            raise ValueError(f"Resume(keep={keep!r}): expected a number of states above 0.")
        self.folder = folder
        self.every = every
        self.keep = keep
        self.running: ResumableFit | None = None
        """The `fit` that runs with this callback; None outside of `DistributedModel.fit`."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse a `fit` that is not the one of a DistributedModel."""
        if self.running is None:
            raise ValueError(
                "Resume works with DistributedModel.fit only: wrap the model, DistributedModel(model). With one "
                "replica its numbers are those of plain Keras, bit by bit."
            )
        self.running.begin()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch. After a complete training that is to be longer, take up its state."""
        if self.running is not None:
            self.running.begin_epoch(epoch)

    def on_train_end(self, logs: Any = None) -> None:
        """Save the state of the complete training, or take it up, before other callbacks end."""
        if self.running is not None:
            self.running.end()


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
