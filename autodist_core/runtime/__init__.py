"""Run distributed graphs: on one machine in a local session, with no server and no socket."""

from autodist_core.runtime.session import DistributedSession, Step

__all__ = ["DistributedSession", "Step"]
