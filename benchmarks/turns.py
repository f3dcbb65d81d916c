"""Trainings that take turns: one training runs an epoch while the others wait.

A training is one call of Keras's `fit` in a child process. A callback waits at the beginning of every epoch for the
training's turn, and measures the epoch from its beginning to its end. Nothing is measured within a step, so the
measurement adds nothing to a step. `one_machine.py` starts the trainings and gives the turns.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from workloads import WORKLOADS

PLAIN, ONE, TWO, MIRRORED = "plain", "one", "two", "mirrored"
CONTENDERS = (PLAIN, ONE, TWO, MIRRORED)
UNFUSED, REDUCED, SERVED = "unfused", "reduced", "served"
MORE = (UNFUSED, REDUCED, SERVED)
PLAIN_XLA, ONE_XLA, TWO_XLA = XLA = ("plain_xla", "one_xla", "two_xla")
_OPTIONS: dict[str, dict[str, Any]] = {
    ONE: {},
    TWO: {},
    ONE_XLA: {},
    TWO_XLA: {},
    UNFUSED: {"fused_updates": False},
    REDUCED: {"strategy": "AllReduce", "share_memory": False},
    SERVED: {"strategy": "PSLoadBalancing", "share_memory": False},
}
"""The settings of DistributedModel for each contender. ONE and ONE_XLA have one replica, and the others have two."""
_SECONDS = 5 * 60
_WARM_UP = 2  # epochs before the first turn


class Training:
    """One contender that trains one model in a child process. After the first epochs, it waits for its turns."""

    def __init__(self, contender: str, workload: str, steps: int, rounds: int) -> None:
        self.contender = contender
        self._connection, theirs = multiprocessing.Pipe()
        arguments = (theirs, contender, workload, steps, rounds)
        self._process = multiprocessing.get_context("spawn").Process(target=train, args=arguments, daemon=True)
        self._process.start()

    def wait_until_ready(self) -> None:
        """Wait until TensorFlow is imported and the first epochs are done."""
        self._receive()

    def turn(self) -> float:
        """Train one epoch and return its milliseconds per step."""
        self._connection.send(None)
        return self._receive()

    def end(self) -> None:
        """Wait until `fit` has returned."""
        self._receive()
        self._process.join(_SECONDS)

    def _receive(self) -> float:
        if not self._connection.poll(_SECONDS):
            raise TimeoutError(f"{self.contender} sent no result within {_SECONDS} seconds")
        found = self._connection.recv()
        if isinstance(found, str):
            raise RuntimeError(f"{self.contender} failed:\n{found}")
        return found


def train(connection: Connection, contender: str, workload: str, steps: int, rounds: int) -> None:
    """Train the first epochs, and then one epoch for each turn.

    The function sends the milliseconds per step of each epoch through the connection, or the traceback of an error.
    """
    try:
        _train(connection, contender, workload, steps, rounds)
        connection.send(0.0)
    except BaseException:
        connection.send(traceback.format_exc())


def _train(connection: Connection, contender: str, name: str, steps: int, rounds: int) -> None:
    scope = _mirrored().scope() if contender == MIRRORED else None
    import keras

    class Turns(keras.callbacks.Callback):
        """Waits for the training's turn before each epoch but the first ones, and sends the time of the epoch."""

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch >= _WARM_UP:
                connection.recv()
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch >= _WARM_UP - 1:
                connection.send((time.perf_counter() - self.began) * 1000 / steps)

    workload = WORKLOADS[name]
    options = {"epochs": rounds + _WARM_UP, "steps_per_epoch": steps, "callbacks": [Turns()]}
    options |= {"shuffle": False, "verbose": 0}
    keras.utils.set_random_seed(0)
    if scope is not None:
        with scope:
            model = workload.make()
        model.fit(workload.dataset(), **options)
        return
    model = workload.make()
    model.jit_compile = contender in XLA
    if contender in (PLAIN, PLAIN_XLA):
        model.fit(workload.dataset(), **options)
        return
    from autodist_core import ResourceSpec
    from autodist_keras import DistributedModel

    spec = ResourceSpec.local(cpus=1 if contender in (ONE, ONE_XLA) else 2)
    with DistributedModel(model, spec, **_OPTIONS[contender]) as distributed:
        distributed.fit(workload.dataset(), **options)


def _mirrored() -> Any:
    import tensorflow as tf

    processor = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_visible_devices([], "GPU")
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
