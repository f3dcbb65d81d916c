"""Timeline: a file with what every device does in a few steps, for Perfetto and Chrome's tracing."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import keras

from autodist_core.log import log
from autodist_core.reports.timeline import timeline
from autodist_core.runtime import Timings
from autodist_keras.callbacks.measured import driver_of


class Timeline(keras.callbacks.Callback):
    """Write a timeline of a few steps on all machines to one file, which Perfetto and Chrome's tracing open.

    The file has the Trace Event Format. Your program is one process in it, with its input and its session, and each
    device of each machine is another one, with its operations. Steps take longer while they are followed, and other
    steps do not.

    Args:
        path: The file. With the ending `.gz` it is compressed.
        steps: How many steps to follow.
        after: How many steps to run before. The first steps of a `fit` are slower than later ones. A `fit` that ends
            before a step was followed writes no file, and the log says so.

    >>> import tempfile
    >>> import numpy as np
    >>> from autodist_core import ResourceSpec
    >>> from autodist_keras import DistributedModel
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> with tempfile.TemporaryDirectory() as folder, DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
    ...     path = os.path.join(folder, "steps.json.gz")
    ...     history = dm.fit(np.ones((64, 3)), np.zeros((64, 1)), batch_size=4, verbose=0, callbacks=[Timeline(path)])
    ...     with gzip.open(path, "rt") as file:
    ...         events = json.load(file)["traceEvents"]
    >>> sorted({event["args"]["name"] for event in events if event["name"] == "process_name"})
    ['localhost CPU:0', 'localhost CPU:1', 'program']
    """

    def __init__(self, path: str | os.PathLike[str], steps: int = 5, after: int = 10) -> None:
        super().__init__()
        for name, value, least in (("steps", steps, 1), ("after", after, 1)):
            if type(value) is not int or value < least:
                raise ValueError(f"Timeline({name}={value!r}): expected a whole number of steps, at least {least}.")
        self.path = os.fspath(path)
        self.steps = steps
        self.after = after
        self._rounds = 0
        self._timings: Timings | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse a `fit` that is not the one of a DistributedModel."""
        driver_of(self)
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        self._rounds, self._timings = 0, None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Begin to follow the steps, and end it."""
        self._rounds += 1
        if self._rounds == self.after:
            self._timings = Timings()
            self._timings.follows_operations = True
            driver_of(self).measure(self._timings)
        if self._timings is not None:
            self._timings.mark()
            # The first one is left out: TensorFlow prepares the following of operations in it.
            if len(self._timings.calls) == self.steps + 1:
                self._write()

    def on_train_end(self, logs: Any = None) -> None:
        """Write what there is of a `fit` that had fewer steps."""
        if self._timings is not None:
            self._write()
        elif self._rounds < self.after:
            self._warn()

    def _write(self) -> None:
        driver, timings = driver_of(self), self._timings
        driver.measure(None)
        self._timings = None
        assert timings is not None
        if len(timings.calls) < 2:
            self._warn()
            return
        content = json.dumps(timeline(timings.calls[1:], driver.settings.resource_spec.chief.address))
        compressed = self.path.endswith(".gz")
        Path(self.path).write_bytes(gzip.compress(content.encode()) if compressed else content.encode())

    def _warn(self) -> None:
        log.warning(
            "Timeline(%r) wrote no file: this fit ended after %s steps. Timeline(after=%s) follows steps from step %s "
            "on. Train for more steps, or give a smaller `after`.",
            self.path, self._rounds, self.after, self.after + 2,
        )  # fmt: skip
