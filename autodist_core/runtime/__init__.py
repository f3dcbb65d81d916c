"""Run distributed graphs: on one machine as functions on the user's own variables, or over a cluster.

In: a placement, captured steps and batches. Out: results, and the state of all replicas.
"""

from autodist_core.runtime.batch_slices import Each, slices
from autodist_core.runtime.composites import COMPOSITE, array_of, arrays_of, component_specs, kind_of, spec_of
from autodist_core.runtime.data_pipelines import (
    DataPipeline,
    DrawnBatch,
    DrawnRows,
    Follower,
    Pass,
    is_by_file,
    samples_of,
    travelling,
)
from autodist_core.runtime.failed_replicas import UNCHANGED
from autodist_core.runtime.kept_arrays import KEPT_VARIABLE, SMALL_GRAPH, KeptArrays, KeptRows, kept_limit
from autodist_core.runtime.local import LocalSession
from autodist_core.runtime.protocol import Condition, Session, SessionStep
from autodist_core.runtime.recovery.recovering import RecoveringSession
from autodist_core.runtime.sent_arrays import bytes_of
from autodist_core.runtime.session import DistributedSession, Step
from autodist_core.runtime.timings import Call, Operation, Run, Timings

__all__ = [
    "COMPOSITE", "KEPT_VARIABLE", "SMALL_GRAPH", "UNCHANGED", "Call", "Condition", "DataPipeline", "DistributedSession",
    "DrawnBatch", "DrawnRows", "Each", "Follower", "KeptArrays", "KeptRows", "LocalSession", "Operation", "Pass",
    "RecoveringSession", "Run", "Session", "SessionStep", "Step", "Timings", "array_of", "arrays_of", "bytes_of",
    "component_specs", "is_by_file", "kept_limit", "kind_of", "samples_of", "slices", "spec_of", "travelling",
]  # fmt: skip
