"""What Keras's loops tell callbacks and users, kept in a form that two trainings can be compared in."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

HOOKS = sorted(name for name in vars(keras.callbacks.Callback) if name.startswith("on_"))


class Recorder(keras.callbacks.Callback):
    """Keeps each call of each hook: its name, the number of its epoch or batch, and its logs."""

    def __init__(self):
        super().__init__()
        self.calls: list[Any] = []

    def set_params(self, params):
        super().set_params(params)
        self.calls.append({name: str(value) for name, value in params.items()})


def _kept(hook: str) -> Callable[..., None]:
    def keep(self, *numbers, logs=None):
        *numbers, last = [*numbers, logs]
        logs = numbers.pop() if last is None and numbers and isinstance(numbers[-1], dict) else last
        self.calls.append([hook, *numbers, keras.tree.map_structure(np.array, logs or {})])

    return keep


for _hook in HOOKS:
    if _hook not in ("on_batch_begin", "on_batch_end"):  # what the hooks of training batches call besides
        setattr(Recorder, _hook, _kept(_hook))


def warned(action: Callable[[], Any]) -> list[Any]:
    """What an action returns, and how often Keras says meanwhile that the data have ended."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = action()
    return [result, sum("ran out of data" in str(each.message) for each in caught)]


def error_of(action: Callable[[], Any]) -> str:
    """The kind and the words of the error that an action raises."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"
