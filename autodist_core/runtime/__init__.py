"""Run distributed graphs: on one machine in a local session, without a server or a socket, or over a cluster.

In: a placement, captured steps and batches. Out: results, and the state of all replicas.
"""

from autodist_core.runtime.protocol import Condition, Session, SessionStep
from autodist_core.runtime.recovery.lasting import LastingSession
from autodist_core.runtime.session import DistributedSession, Step
from autodist_core.runtime.slices import Each

__all__ = ["Condition", "DistributedSession", "Each", "LastingSession", "Session", "SessionStep", "Step"]
