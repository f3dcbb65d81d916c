"""Synchronizers: how the gradients of one variable from all replicas become one, where the variable's update runs.

In: each replica's own gradients, `draft.local`. Out: the reduced gradients of each owner, `draft.reduced`::

    reduced/memory/0/kernel = AddN(replica0/gradient, replica1/gradient)

`all_reduce` gives the sum to every replica. `ps` gives it to one owner, and brings the owner's new value to the
mirrors. `reduction` brings gradients to one owner. `buckets` merges and cuts tensors into vectors of about one size,
and `sums` adds these up over all replicas, by collectives or by sends. `rows` brings the rows of sparse gradients to
each machine, and `factors` the factors of gradients, by the same collective. `shard_factors` brings factors to the
owners of shards. `compressors` decides what is sent in place of a gradient.
"""

from autodist_core.kernel.passes.synchronizer.all_reduce import AllReduceSynchronizer
from autodist_core.kernel.passes.synchronizer.ps import PSSynchronizer

__all__ = ["AllReduceSynchronizer", "PSSynchronizer"]
