"""Synchronizers: how the gradients of one variable from all replicas become one, where its update runs."""

from autodist_core.kernel.passes.synchronizer.all_reduce import AllReduceSynchronizer
from autodist_core.kernel.passes.synchronizer.ps import PSSynchronizer

__all__ = ["AllReduceSynchronizer", "PSSynchronizer"]
