"""The cluster of a spec: started when it is first needed, and started again, or without a node, when one is lost."""

from __future__ import annotations

import logging
import time
from numbers import Real

from autodist_core.cluster.chief.cluster import LOST_AFTER_SECONDS, Cluster
from autodist_core.errors import LaunchError, NodeLostError, ResourceSpecError, did_you_mean
from autodist_core.interrupts import held
from autodist_core.resource_spec import ResourceSpec

_log = logging.getLogger("autodist")

ON_FAILURE = {
    "raise": "end the call with an error, and keep what was trained",
    "restart": "start all nodes again, and go on from the last consistent state",
    "shrink": "go on without the nodes that are gone, from the last consistent state",
}
RESTART_SECONDS, _PAUSE = 300.0, 5.0
_MOST_IN_VAIN = 3
_LEAST, _MOST = 0.1, 366 * 86400


def on_failure_choice(value: object) -> str:
    """What to do when a node is lost, if it is one of the choices."""
    if not isinstance(value, str) or value not in ON_FAILURE:
        choices = "; ".join(f"{name!r}: {meaning}" for name, meaning in ON_FAILURE.items())
        hint = did_you_mean(str(value), ON_FAILURE)
        raise ResourceSpecError(f"on_failure={value!r} is none of the choices.{hint} {choices}.")
    return value


def lost_after_seconds(value: object) -> float:
    """A number of seconds in which a sign of life can come: from a tenth of one to a year of them.

    >>> lost_after_seconds(5)
    5.0
    >>> lost_after_seconds(float("inf"))
    Traceback (most recent call last):
    autodist_core.errors.ResourceSpecError: lost_after=inf: expected a positive number of seconds, from 0.1 to 31622400.
    """
    if not isinstance(value, Real) or isinstance(value, bool) or not _LEAST <= float(value) <= _MOST:
        raise ResourceSpecError(
            f"lost_after={value!r}: expected a positive number of seconds, from {_LEAST} to {_MOST}."
        )
    return float(value)


class Fleet:
    """Has a cluster of the nodes of `spec`, as long as they last."""

    def __init__(
        self, spec: ResourceSpec, on_failure: str = "raise", lost_after: float = LOST_AFTER_SECONDS,
        tunnelled: bool = False,
    ) -> None:
        self.spec = spec
        self.on_failure = on_failure
        self.lost_after = lost_after
        self.tunnelled = tunnelled
        self.cluster: Cluster | None = None
        self._in_vain = 0

    @property
    def lost(self) -> bool:
        """Whether there was a cluster, and a node of it is gone."""
        with held():
            return self.cluster is not None and self.cluster.lost.done()

    def start(self) -> Cluster:
        """The cluster; its agents are started if they do not run."""
        if self.lost:
            self.close()
        if self.cluster is None:
            nodes = ", ".join(node.address for node in self.spec.nodes)
            _log.info("Starting %d nodes: %s.", len(self.spec.nodes), nodes)
            self.cluster = Cluster.start(self.spec, self.lost_after, self.tunnelled)
        return self.cluster

    def close(self) -> None:
        """End the cluster, if there is one."""
        cluster, self.cluster = self.cluster, None
        if cluster is not None:
            cluster.close()

    def renew(self, error: Exception) -> None:
        """Have new servers on the same nodes, after an error that those there were do not survive."""
        _log.warning("%s The servers of all nodes are started again.", error)
        self.close()
        self.start()

    def restart(self, error: NodeLostError) -> None:
        """Have a cluster again after a node was lost; raises what keeps one from it."""
        self.close()
        self._in_vain += 1
        if self._in_vain > _MOST_IN_VAIN:
            raise LaunchError("", f"{_MOST_IN_VAIN} clusters were lost in a row before one of them completed a step.")
        _log.warning("%s Training goes on with another cluster (on_failure=%r).", error, self.on_failure)
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
                _log.warning("Not yet: %s Trying again.", failure)
                time.sleep(_PAUSE)

    def progress(self) -> None:
        """Note that the cluster completed a step."""
        self._in_vain = 0

    def _leave_out(self, hosts: set[str]) -> bool:
        """Take nodes out of the spec, never the chief; whether that made a difference."""
        gone = {node.address for node in self.spec.nodes if node.address in hosts and not node.chief}
        if gone:
            self.spec = self.spec.without(gone)
            _log.warning("Going on without %s.", ", ".join(sorted(gone)))
        return bool(gone)
