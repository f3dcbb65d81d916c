"""Run distributed graphs: on one machine in a local session, with no server and no socket; else over a cluster."""

from autodist_core.runtime.protocol import Condition, Session, SessionStep
from autodist_core.runtime.recovery.lasting import LastingSession
from autodist_core.runtime.session import DistributedSession, Step

__all__ = ["Condition", "DistributedSession", "LastingSession", "Session", "SessionStep", "Step"]
