"""Kernels: from a captured step of one device to one step of all replicas.

`build` is the whole of it: place the variables, then run the kernels in order.
"""

from __future__ import annotations

from autodist_core.kernel.analysis.random_draws import drawn_by_replicas
from autodist_core.kernel.analysis.results import Joining, joining
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel, run
from autodist_core.kernel.pipeline import PIPELINE, DistributedGraph, build
from autodist_core.kernel.placement.arrangement import Arrangement, arrange
from autodist_core.kernel.placement.devices import Tasks
from autodist_core.kernel.placement.placement import Placement, inference, place

__all__ = [
    "PIPELINE", "Arrangement", "DistributedGraph", "Draft", "Joining", "Kernel", "Placement", "Tasks", "arrange",
    "build", "drawn_by_replicas", "inference", "joining", "place", "run",
]  # fmt: skip
