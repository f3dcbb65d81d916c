"""Build the graph of a step over many replicas from the graph of a few that stand for all.

On machines with one replica each, all replicas but the first do the same. So the kernels build the graph of the first
replica, and of two others. What the others do becomes functions, and each replica calls them.
"""

from autodist_core.kernel.alike.kinds import Kind, kinds_of, standing
from autodist_core.kernel.alike.repeating import repeated
from autodist_core.kernel.alike.roles import NotAlikeError, of_replica

__all__ = ["Kind", "NotAlikeError", "kinds_of", "of_replica", "repeated", "standing"]
