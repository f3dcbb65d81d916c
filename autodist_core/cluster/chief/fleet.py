"""The cluster of a resource spec over the time of a training: started when needed, and replaced when a node is lost.

In: a ResourceSpec and what to do on failure. Out: a running `Cluster`. On failure the fleet starts all nodes again
(``"restart"``), goes on without the nodes that are gone (``"shrink"``), or leaves the error to the call (``"raise"``).
"""

import time
from dataclasses import dataclass
from numbers import Real

from autodist_core.cluster.chief.cluster import LOST_AFTER_SECONDS, Cluster
from autodist_core.cluster.doctor.examination import require_startable
from autodist_core.errors import LaunchError, NodeLostError, ResourceSpecError, did_you_mean
from autodist_core.interrupts import defer_interrupt
from autodist_core.log import log, stage
from autodist_core.resource_spec import ResourceSpec

ON_FAILURE = {
    "raise": "end the call with an error, and keep what was trained",
    "restart": "start all nodes again, and go on from the last consistent state",
    "shrink": "go on without the nodes that are gone, from the last consistent state",
}
RESTART_SECONDS, _RETRY_SECONDS = 300.0, 5.0
_MOST_LOSSES = 3
"""How many clusters in a row may be lost before one of them completes a step."""
_MOST_SECONDS = 366 * 86400


def on_failure_choice(value: object) -> str:
    """Check the setting `on_failure`; a ResourceSpecError lists the choices.

    >>> on_failure_choice("restart")
    'restart'
    """
    if not isinstance(value, str) or value not in ON_FAILURE:
        choices = "; ".join(f"{name!r}: {meaning}" for name, meaning in ON_FAILURE.items())
        hint = did_you_mean(str(value), ON_FAILURE)
        raise ResourceSpecError(f"on_failure={value!r} is none of the choices.{hint} {choices}.")
    return value


def seconds_choice(name: str, least: float, value: object) -> float:
    """Check a setting that is a number of seconds, `least` at least and a year at most.

    >>> seconds_choice("lost_after", 0.1, 5)
    5.0
    >>> seconds_choice("lost_after", 0.1, float("inf"))
    Traceback (most recent call last):
    autodist_core.errors.ResourceSpecError: lost_after=inf: expected a number of seconds, from 0.1 to 31622400.
    """
    if not isinstance(value, Real) or isinstance(value, bool) or not least <= float(value) <= _MOST_SECONDS:
        raise ResourceSpecError(f"{name}={value!r}: expected a number of seconds, from {least} to {_MOST_SECONDS}.")
    return float(value)


@dataclass(eq=False)
class Fleet:
    """Holds the cluster of the nodes of `spec`, and another one after a node was lost::

        fleet = Fleet(ResourceSpec("cluster.yml"), on_failure="restart")
        cluster = fleet.start()
        ...
        fleet.close()
    """

    spec: ResourceSpec
    on_failure: str = "raise"
    lost_after: float = LOST_AFTER_SECONDS
    tunnelled: bool = False
    cluster: Cluster | None = None
    _losses_in_a_row: int = 0

    @property
    def lost(self) -> bool:
        """Whether the fleet has a cluster that has lost a node."""
        with defer_interrupt():
            return self.cluster is not None and self.cluster.lost.done()

    def require_startable(self) -> None:
        """Raise if `start` would be refused for what this machine alone can tell: before a loop begins."""
        if self.cluster is not None and self.lost:
            self.cluster.lost.result()  # raises in a forked process
        elif self.cluster is None and len(self.spec.nodes) > 1:
            require_startable(self.spec)

    def start(self) -> Cluster:
        """Return the cluster; start one if there is none, or if a node of it was lost."""
        if self.lost:
            self.close()
        if self.cluster is None:
            nodes = ", ".join(node.address for node in self.spec.nodes)
            with stage(f"the start of {nodes}"):
                if self.spec.ray_agents is not None:
                    self.spec.ray_agents.start(self.spec.nodes)
                self.cluster = Cluster.start(self.spec, self.lost_after, self.tunnelled)
        return self.cluster

    def close(self) -> None:
        """End the cluster, if there is one, and give Ray's machines back."""
        cluster, self.cluster = self.cluster, None
        if cluster is not None:
            cluster.close()
        if self.spec.ray_agents is not None:
            self.spec.ray_agents.close()

    def restart_servers(self, error: Exception) -> None:
        """Start the servers of the same nodes again, after an error that TensorFlow's collectives do not survive."""
        log.warning("%s The servers of all nodes are started again.", error)
        self.close()
        self.start()

    def restart(self, error: NodeLostError) -> None:
        """Start another cluster after a node was lost; a LaunchError if none could be started in time."""
        self.close()
        self._losses_in_a_row += 1
        if self._losses_in_a_row > _MOST_LOSSES:
            raise LaunchError("", f"{_MOST_LOSSES} clusters were lost in a row before one of them completed a step.")
        log.warning("%s Training goes on with another cluster (on_failure=%r).", error, self.on_failure)
        if self.on_failure == "shrink":
            self._leave_out({error.host})
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            try:
                self.start()
                return
            except LaunchError as failure:
                if self.on_failure == "shrink" and self._leave_out(set(failure.hosts)):
                    continue
                if time.monotonic() > deadline:
                    raise
                log.warning("The cluster did not start: %s It is tried again.", failure)
                time.sleep(_RETRY_SECONDS)

    def note_progress(self) -> None:
        """Note that the cluster completed a step: the count of lost clusters begins anew."""
        self._losses_in_a_row = 0

    def _leave_out(self, hosts: set[str]) -> bool:
        """Take nodes out of the spec, but never the chief; return whether there was any."""
        gone = {node.address for node in self.spec.nodes if node.address in hosts and not node.chief}
        if gone:
            self.spec = self.spec.without(gone)
            log.warning("Training goes on without %s.", ", ".join(sorted(gone)))
        return bool(gone)
