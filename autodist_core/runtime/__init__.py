"""Run distributed graphs: on one machine as functions on the user's own variables, or over a cluster.

In: a placement, captured steps and batches. Out: results, and the state of all replicas. A front imports these names.
"""

from autodist_core.runtime.batch_slices import slices
from autodist_core.runtime.composites import COMPOSITE, arrays_of, component_specs, kind_of, spec_of
from autodist_core.runtime.data_pipelines import DataPipeline, DrawnBatch, DrawnRows, Follower, is_by_file, travelling
from autodist_core.runtime.equal_arrays import same_bits
from autodist_core.runtime.kept_arrays import KEPT_VARIABLE, SMALL_GRAPH, KeptArrays, kept_limit
from autodist_core.runtime.recipe import Recipe
from autodist_core.runtime.recovery.on_disk import HUGE_BYTES, fill, is_huge, room
from autodist_core.runtime.sent_arrays import bytes_of
from autodist_core.runtime.timings import Timings
from autodist_core.runtime.written_parts import read_parts

__all__ = [
    "COMPOSITE", "HUGE_BYTES", "KEPT_VARIABLE", "SMALL_GRAPH", "DataPipeline", "DrawnBatch", "DrawnRows", "Follower",
    "KeptArrays", "Recipe", "Timings", "arrays_of", "bytes_of", "component_specs", "fill", "is_by_file", "is_huge",
    "kept_limit", "kind_of", "read_parts", "room", "same_bits", "slices", "spec_of", "travelling",
]
