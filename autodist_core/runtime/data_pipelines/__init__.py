"""Datasets that run on each machine, so that a step feeds only where the rows of its replicas are; and their seeds.

In: a dataset of tf.data. Out: a `DataPipeline`, if it can run on other machines (`travelling.py`), and a machine's own
copy of it (`on_machines.py`) from which the graph of a step takes rows (`autodist_core.kernel.drawn`). `by_file.py`
shares its files out among the machines, where the user asks for this. `batches.py` has the values that travel.
`seed_generators.py` reads and sets how many seeds the shuffles of a dataset have drawn. `graphs.py` writes the graph of
a dataset, and makes a dataset of one.
"""

from autodist_core.runtime.data_pipelines.batches import DataPipeline, DrawnBatch, DrawnRows, Pass, samples_of
from autodist_core.runtime.data_pipelines.by_file import is_by_file
from autodist_core.runtime.data_pipelines.on_machines import PipelineSlot, PipelinesOnMachines
from autodist_core.runtime.data_pipelines.seed_generators import SeedGenerators
from autodist_core.runtime.data_pipelines.travelling import travelling

__all__ = [
    "DataPipeline", "DrawnBatch", "DrawnRows", "Pass", "PipelineSlot", "PipelinesOnMachines", "SeedGenerators",
    "is_by_file", "samples_of", "travelling",
]  # fmt: skip
