"""Build the graph of a step over many machines from the graph of a few that stand for all.

On machines with equal devices, all machines but the first do the same. So the kernels build the graph of the first
machine, and of two others. What the others do becomes functions, and each machine calls them.
"""

from autodist_core.kernel.alike.kinds import Kind, kinds_of, standing
from autodist_core.kernel.alike.repeating import repeated
from autodist_core.kernel.alike.roles import NotAlikeError

__all__ = ["Kind", "NotAlikeError", "kinds_of", "repeated", "standing"]
