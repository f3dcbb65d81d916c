"""Datasets that run on each machine, so that a step feeds only where the rows of its replicas are; and their seeds.

In: a dataset of tf.data. Out: a `DataPipeline`, if it can run on other machines (`travelling.py`), and a machine's own
copy of it (`on_machines.py`) from which the graph of a step takes rows (`autodist_core.kernel.drawn`). `by_file.py`
shares its files out among the machines, where the user asks for this. `batches.py` has the values that travel, and
`following.py` knows where the user's process is. `failed_batches.py` has the words for a batch that a machine cannot
make.
`iterator_states.py` saves and sets where an iterator is. `seed_generators.py` reads and sets how many seeds the
shuffles of a dataset have drawn, each with a probe (`seed_probe.py`). `graphs.py` writes the graph of a dataset, and
makes a dataset of one.
"""

from autodist_core.runtime.data_pipelines.batches import DataPipeline, DrawnBatch, DrawnRows, Pass
from autodist_core.runtime.data_pipelines.by_file import is_by_file
from autodist_core.runtime.data_pipelines.failed_batches import of_data
from autodist_core.runtime.data_pipelines.following import Follower
from autodist_core.runtime.data_pipelines.iterator_states import FAIL, IGNORE, set_state, state_and_drawn
from autodist_core.runtime.data_pipelines.on_machines import PipelineSlot, PipelinesOnMachines
from autodist_core.runtime.data_pipelines.seed_generators import SeedGenerators
from autodist_core.runtime.data_pipelines.travelling import travelling

__all__ = [
    "FAIL", "IGNORE", "DataPipeline", "DrawnBatch", "DrawnRows", "Follower", "Pass", "PipelineSlot",
    "PipelinesOnMachines", "SeedGenerators", "is_by_file", "of_data", "set_state", "state_and_drawn", "travelling",
]  # fmt: skip
