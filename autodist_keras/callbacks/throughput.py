"""Throughput: examples and steps per second in the logs of each epoch."""

import time
from typing import Any

import keras

from autodist_keras.callbacks.measured import driver_of


class Throughput(keras.callbacks.Callback):
    """Add `examples_per_second` and `steps_per_second` to the logs of each epoch, and so to `History`.

    The time of validation does not count, and neither does the first step of a `fit`, in which the step is captured;
    it counts if it is the only one of its epoch.

    Args:
        one_replica: The examples per second of the same model on one replica, as this callback logged them in a run
            with one device. With it, the logs have `scaling_efficiency`, too: the examples per second, by `one_replica`
            times the number of replicas. It is 1.0 if N replicas are N times as fast as one.

    >>> import numpy as np
    >>> from autodist_core import ResourceSpec
    >>> from autodist_keras import DistributedModel
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.ones((64, 3)), np.zeros((64, 1))
    >>> with DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
    ...     history = dm.fit(x, y, batch_size=8, verbose=0, callbacks=[Throughput(one_replica=1000.0)])
    >>> sorted(history.history)
    ['examples_per_second', 'loss', 'scaling_efficiency', 'steps_per_second']
    """

    def __init__(self, one_replica: float | None = None) -> None:
        super().__init__()
        if one_replica is not None and not one_replica > 0:
            raise ValueError(f"Throughput(one_replica={one_replica!r}): expected examples per second, above 0.")
        self.one_replica = one_replica
        self._before = 0
        """The steps of earlier fits."""
        self._first: tuple[float, int, int] | None = None
        """The mark after the first step of the `fit`."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse a `fit` that is not the one of a DistributedModel."""
        driver_of(self)
        self._first, self._before = None, driver_of(self).steps

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin to count."""
        self._begin = self._end = self._mark()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count a round of Keras's loop."""
        self._end = self._mark()
        if self._first is None:
            self._first = self._end

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Put the figures into the logs."""
        begin, end = self._begin, self._end
        if logs is None or end is begin:
            return
        if begin[2] == 0 and self._first is not None and self._first is not end:
            begin = self._first
        seconds, examples, steps = (after - before for before, after in zip(begin, end, strict=True))
        logs["examples_per_second"] = examples / seconds
        logs["steps_per_second"] = steps / seconds
        if self.one_replica is not None:
            replicas = driver_of(self).settings.replicas
            logs["scaling_efficiency"] = logs["examples_per_second"] / (replicas * self.one_replica)

    def _mark(self) -> tuple[float, int, int]:
        driver = driver_of(self)
        return time.perf_counter(), driver.examples, driver.steps - self._before
