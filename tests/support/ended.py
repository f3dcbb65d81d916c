"""End a training at a step in this process, as a signal would: what a program that starts again finds."""

from collections.abc import Callable
from typing import Any

import keras
import pytest


class Killed(BaseException):
    """Ends a training where it is."""


def kill(steps: int) -> keras.callbacks.Callback:
    """End the training before a step, counted from its beginning over all epochs."""
    ran = iter(range(10**6))

    def end(batch: int, logs: Any) -> None:
        if next(ran) == steps:
            raise Killed

    return keras.callbacks.LambdaCallback(on_train_batch_begin=end)


def killed(start: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Start a training, which is to be killed."""
    with pytest.raises(Killed):
        start(*arguments, **options)
