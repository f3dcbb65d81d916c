"""Build the graph of a step over many machines from the graph of a few that stand for all.

On machines with equal devices, all machines but the first do the same, and all replicas of a machine but the first. So
the kernels build the first machine and one or two others, with two or three replicas each. What the others do becomes
functions, and each replica and each machine calls them.
"""

from autodist_core.kernel.alike.kinds import STANDING, Alike, Kind, found_alike, standing
from autodist_core.kernel.alike.repeating import Repeatable, repeated
from autodist_core.kernel.alike.roles import NotAlikeError

__all__ = ["STANDING", "Alike", "Kind", "NotAlikeError", "Repeatable", "found_alike", "repeated", "standing"]
