"""Build the graph of a step over many machines from the graph of a few that stand for all.

On machines with equal devices, all machines but the first do the same, and all replicas of a machine but the first. So
the kernels build the first machine and one or two others, with two or three replicas each. What the others do becomes
functions, and each replica and each machine calls them.
"""

from autodist_core.kernel.units.kinds import STANDING, Kind, Kinds, found_kinds, standing
from autodist_core.kernel.units.repeating import repeat
from autodist_core.kernel.units.roles import UnlikeError

__all__ = ["STANDING", "Kind", "Kinds", "UnlikeError", "found_kinds", "repeat", "standing"]
