"""Run distributed graphs: on one machine in a local session, with no server and no socket; else over a cluster."""

from autodist_core.runtime.loose_steps import LooseStep
from autodist_core.runtime.recovery.lasting import LastingSession, LastingStep
from autodist_core.runtime.session import AnyStep, DistributedSession, Step

AnySession = DistributedSession | LastingSession

__all__ = ["AnySession", "AnyStep", "DistributedSession", "LastingSession", "LastingStep", "LooseStep", "Step"]
