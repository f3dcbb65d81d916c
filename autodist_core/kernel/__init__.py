"""Kernels: from a captured step of one device to one step of all replicas.

`build` is the whole of it: place the variables, then run the kernels in order.
"""

from __future__ import annotations

from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel, run
from autodist_core.kernel.pipeline import PIPELINE, DistributedGraph, build
from autodist_core.kernel.placement.placement import Placement, held_in_step, inference, kept_whole, place

__all__ = [
    "PIPELINE", "DistributedGraph", "Draft", "Kernel", "Placement", "build", "held_in_step", "inference", "kept_whole",
    "place", "run",
]  # fmt: skip
