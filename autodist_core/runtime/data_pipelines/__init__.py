"""Datasets that run on each machine, so that a step feeds only where the rows of its replicas are.

In: a dataset of tf.data. Out: a `DataPipeline`, if it can run on other machines (`travelling.py`), and a machine's own
copy of it (`on_machines.py`) from which the graph of a step takes rows (`autodist_core.kernel.drawn`). `by_file.py`
shares its files out among the machines, where the user asks for this. `as_graph.py` makes a graph of a
dataset and the other way round, and `batches.py` has the values that travel.
"""

from autodist_core.runtime.data_pipelines.batches import DataPipeline, DrawnBatch, DrawnRows, Pass, samples_of
from autodist_core.runtime.data_pipelines.by_file import is_by_file
from autodist_core.runtime.data_pipelines.on_machines import PipelineSlot, PipelinesOnMachines
from autodist_core.runtime.data_pipelines.travelling import draws_while_iterated, travelling

__all__ = [
    "DataPipeline", "DrawnBatch", "DrawnRows", "Pass", "PipelineSlot", "PipelinesOnMachines", "draws_while_iterated",
    "is_by_file", "samples_of", "travelling",
]  # fmt: skip
