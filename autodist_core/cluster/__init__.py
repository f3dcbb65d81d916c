"""The processes of a cluster: agents on all nodes, started over ssh, each with a TensorFlow server.

A run begins with `Cluster.start` and ends with `Cluster.close`. Nothing here knows of graphs or models, and nothing
but `server` imports TensorFlow, so that what is wrong with a cluster is found in a second.
"""

from autodist_core.cluster.cluster import Cluster
from autodist_core.cluster.fleet import Fleet
from autodist_core.cluster.standing import stand_by_unless_chief

__all__ = ["Cluster", "Fleet", "stand_by_unless_chief"]
