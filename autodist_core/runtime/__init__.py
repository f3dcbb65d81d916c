"""Run distributed graphs: on one machine in a local session, with no server and no socket."""

from autodist_core.runtime.loose import LooseStep
from autodist_core.runtime.session import AnyStep, DistributedSession, Step

__all__ = ["AnyStep", "DistributedSession", "LooseStep", "Step"]
