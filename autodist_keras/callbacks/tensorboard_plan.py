"""TensorBoardPlan: the plan of a training, and where its variables are, for TensorBoard."""

import os
from os import PathLike
from typing import Any

import keras
import tensorflow as tf

from autodist_core.plan import Plan
from autodist_keras.callbacks.measured import driver_of
from autodist_keras.reports.model_plan import plan_of_captured


class TensorBoardPlan(keras.callbacks.Callback):
    """Write the plan of a training into a folder that TensorBoard shows.

    The tab Text has the plan, and where the variables are. They are written once, after the first step of a `fit`. The
    folder may be the one of Keras's own TensorBoard callback.

    Args:
        log_dir: The folder. The texts are in its subfolder `plan`.

    >>> import tempfile
    >>> import numpy as np
    >>> from autodist_core import ResourceSpec
    >>> from autodist_keras import DistributedModel
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> with tempfile.TemporaryDirectory() as folder, DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
    ...     callbacks = [TensorBoardPlan(folder)]
    ...     history = dm.fit(np.ones((8, 3)), np.zeros((8, 1)), batch_size=4, verbose=0, callbacks=callbacks)
    ...     os.listdir(folder)
    ['plan']
    """

    def __init__(self, log_dir: str | PathLike[str]) -> None:
        super().__init__()
        self.log_dir = os.fspath(log_dir)
        self._written: Plan | None = None
        self._due = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse a `fit` that is not the one of a DistributedModel."""
        driver_of(self)
        self._due = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Write, after the first step; nothing if this plan is written already."""
        if self._due:
            self._due = False
            driver = driver_of(self)
            plan, state = plan_of_captured(driver.model, driver, driver.captured), driver.training.state
            if plan != self._written and state is not None:
                self._written = plan
                with tf.summary.create_file_writer(os.path.join(self.log_dir, "plan")).as_default(step=0):
                    _write_text("1 plan", plan)
                    _write_text("2 placement", str(state.session.placement))


def _write_text(tag: str, text: str) -> None:
    """Write text without the tensorboard package, which need not be installed where the program runs."""
    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="text")
    )
    tf.summary.write(tag, f"```\n{text}\n```", metadata=metadata)
