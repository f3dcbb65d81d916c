"""TensorBoardPlan: the plan, and the graphs of a step as captured and for all replicas, for TensorBoard."""

import os
from os import PathLike
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.framework.tensor_pb2 import TensorProto

from autodist_core.kernel import Placement, build, loose_graphs
from autodist_core.plan import Plan
from autodist_core.step.editor import Editor
from autodist_core.step.graph_item import GraphItem
from autodist_keras.callbacks.measured import driver_of
from autodist_keras.reports.model_plan import plan_of_captured

_LARGE_BYTES = 1024
"""From which size on the value of a constant is left out."""


class TensorBoardPlan(keras.callbacks.Callback):
    """Write the plan of a training, and the graphs of its step, into a folder that TensorBoard shows.

    The tab Text has the plan, and where the variables are. The tab Graphs has two runs: `captured`, the step as it was
    captured, and `final`, the graph of all replicas; if a replica may be behind or asynchronous, `final` is where the
    first replica computes its gradients. They are written once, after the first step of a `fit`; the other steps cost
    nothing. The folder may be the one of Keras's own TensorBoard callback.

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
    ...     sorted(name for name in os.listdir(os.path.join(folder, "plan")) if "tfevents" not in name)
    ['captured', 'final']
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
                self._write(plan, driver.captured.item, state.session.placement)
                self._written = plan

    def _write(self, plan: Plan, item: GraphItem, placement: Placement) -> None:
        folder = os.path.join(self.log_dir, "plan")
        with tf.summary.create_file_writer(folder).as_default(step=0):
            _write_text("1 plan", plan)
            _write_text("2 placement", str(placement))
        # Loose replicas have several graphs each: the first replica's computes the gradients.
        final = loose_graphs.computing(item, placement, 0) if placement.loose else build(item, placement)
        for name, graph in (("captured", item.graph_def), ("final", final.graph_def)):
            with tf.summary.create_file_writer(os.path.join(folder, name)).as_default(step=0):
                tf.summary.graph(_shown(graph))


def _shown(graph: Any) -> Any:
    """A copy of a graph without the values of large constants, which a picture does not show."""
    editor = Editor.of(graph)
    for name in [node.name for node in editor if node.op == "Const" and node.ByteSize() > _LARGE_BYTES]:
        value = editor[name].attr["value"].tensor
        editor.change(name, value=TensorProto(dtype=value.dtype, tensor_shape=value.tensor_shape))
    return editor.graph_def()


def _write_text(tag: str, text: str) -> None:
    """Write text without the tensorboard package, which need not be installed where the program runs."""
    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="text")
    )
    tf.summary.write(tag, f"```\n{text}\n```", metadata=metadata)
