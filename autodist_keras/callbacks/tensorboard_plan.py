"""TensorBoardPlan: the plan, and the graphs of a step from its capture to all replicas, for TensorBoard."""

import os
from os import PathLike
from typing import Any

import keras
import tensorflow as tf

from autodist_core.kernel import GraphStage, Placement, graph_stages
from autodist_core.plan import Plan
from autodist_core.plan.markdown import cell, code, markdown_of, markdown_table
from autodist_keras.callbacks.measured import driver_of
from autodist_keras.reports.model_plan import plan_of_captured


class TensorBoardPlan(keras.callbacks.Callback):
    """Write the plan of a training, and the graphs of its step, into a folder that TensorBoard shows.

    The tab Text has the plan as a table, where the variables are, and what each stage does. The tab Graphs has a run
    for each stage: the step as it was captured, with its variables split if the strategy splits them, after each kernel
    that changes it, and at last the graph of all replicas. They are written once, after the first step of a `fit`; the
    other steps cost nothing. The folder may be the one of Keras's own TensorBoard callback.

    Args:
        log_dir: The folder. The runs are in its subfolder `plan`.

    >>> import tempfile
    >>> import numpy as np
    >>> from autodist_core import ResourceSpec
    >>> from autodist_keras import DistributedModel
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> with tempfile.TemporaryDirectory() as folder, DistributedModel(model, ResourceSpec.local(cpus=2)) as dm:
    ...     callbacks = [TensorBoardPlan(folder)]
    ...     history = dm.fit(np.ones((8, 3)), np.zeros((8, 1)), batch_size=4, verbose=0, callbacks=callbacks)
    ...     runs = sorted(name for name in os.listdir(os.path.join(folder, "plan")) if "tfevents" not in name)
    >>> runs[0], runs[1], runs[-1]
    ('01-captured', '02-Replicator', '08-Order-final')
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
            if plan != self._written and driver.captured is not None and state is not None:
                placement = state.session.placement
                self._write(plan, placement, graph_stages(driver.captured.item, placement))
                self._written = plan

    def _write(self, plan: Plan, placement: Placement, stages: tuple[GraphStage, ...]) -> None:
        folder = os.path.join(self.log_dir, "plan")
        names = [f"{number:02}-{stage.name}" for number, stage in enumerate(stages, start=1)]
        rows = [(code(name), cell(stage.what)) for name, stage in zip(names, stages, strict=True)]
        with tf.summary.create_file_writer(folder).as_default(step=0):
            _write_text("1 plan", markdown_of(plan.table))
            _write_text("2 placement", f"```\n{placement}\n```")
            _write_text("3 stages", markdown_table(("run of the tab Graphs", "operations before -> after"), rows))
        for name, stage in zip(names, stages, strict=True):
            with tf.summary.create_file_writer(os.path.join(folder, name)).as_default(step=0):
                tf.summary.graph(stage.graph_def)


def _write_text(tag: str, markdown: str) -> None:
    """Write text without the tensorboard package, which need not be installed where the program runs."""
    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="text")
    )
    tf.summary.write(tag, markdown, metadata=metadata)
