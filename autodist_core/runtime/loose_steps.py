"""A training step whose replicas run on their own, ahead of each other by a number of steps or without bound.

Every replica has a thread, which takes over the servers' values, computes on its slice of a batch and leaves the
gradients; whoever completes a step's gradients runs the update. With a bound, an update is made of all replicas'
gradients of one batch, in the order of the batches, and nobody starts a step before the update that is `bound` steps
back; without, each replica's gradients are an update of their own as soon as they are there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition
from typing import Any

from autodist_core.errors import NodeLostError, SessionError
from autodist_core.interrupts import defer_interrupt, wait_for
from autodist_core.kernel import DistributedGraph
from autodist_core.kernel import loose_graphs as loose
from autodist_core.runtime.interruptible import BrokenOffError
from autodist_core.runtime.progress import Progress
from autodist_core.runtime.protocol import SessionStep
from autodist_core.runtime.slices import Batches, slices
from autodist_core.step.graph_item import GraphItem

_AHEAD = 4  # batches under way without a bound: enough to keep every replica busy


class LooseStep(SessionStep):
    """One captured training step over replicas that do not wait for each other."""

    def __init__(self, session: Any, item: GraphItem, prefix: str) -> None:
        self._session = session
        self._prefix = prefix
        self._batches = Batches(item)
        self._bound: int | None = session.placement.loose.steps
        self._progress = Progress()
        self._threads = [ThreadPoolExecutor(1, f"autodist-{replica.name}") for replica in session.placement.replicas]
        self._running: list[tuple[int, Future[list[Any]]]] = []
        self._next = 0
        self._unsettled = False
        self._last: list[Any] = []
        self._calls: dict[tuple[Any, ...], tuple[Callable[..., list[Any]], tuple[int, ...]]] = {}
        self._graph: DistributedGraph | None = None
        self.item = item

    @property
    def graph(self) -> DistributedGraph | None:
        """The first of its graphs: the combination's."""
        return self._graph

    @property
    def lead(self) -> int:
        """The most batches by which a replica has been ahead of the slowest one."""
        return self._progress.lead

    def __call__(self, arrays: Sequence[Any], total: int) -> list[Any]:
        """Hand out one batch; returns what the first replica made of the last batch that it finished."""
        self._session.settle(but=self)
        count = len(self._threads)
        active = max(1, min(total, count))
        bounds = slices(total, count)[:active] if active > 1 else [(0, total)]
        try:
            self._begin(active)
            with defer_interrupt():
                self._hand_out(arrays, total, bounds)
            self._wait_for(count * (_AHEAD if self._bound is None else self._bound + 1))
            if not self._last:
                self._last = _result(next(future for replica, future in self._running if replica == 0))
        except BaseException as failure:
            self._stop(failure)
            raise
        return self._last

    def _hand_out(self, arrays: Sequence[Any], total: int, bounds: Sequence[tuple[int, int]]) -> None:
        batch, self._next, self._unsettled = self._next, self._next + 1, True
        with self._progress.moved:
            self._progress.expected[batch] = len(bounds)
        for replica, (start, stop) in enumerate(bounds):
            feeds = self._batches.part(arrays, self._calls["compute", replica][1], start, stop)
            # Without a bound, what a replica has is a batch of its own.
            counts = float(stop - start), float(total if self._bound is not None else stop - start)
            future = self._threads[replica].submit(self._run, replica, batch, feeds, counts)
            self._running.append((replica, future))

    def settle(self) -> None:
        """Wait until all batches are done; then all replicas have the last values, and what they wrote is one state."""
        if not self._unsettled:
            return
        try:
            self._clear_up()
        except Exception as failure:
            self._stop(failure)
            self._finish()
            raise
        self._finish()

    def _finish(self) -> None:
        for replica in range(len(self._threads)):
            self._call("follow", replica)(1.0, 1.0)
        self._call("combine")(*[1.0] * len(self._threads), float(len(self._threads)))
        self._unsettled, self._last = False, []

    def close(self) -> None:
        """End the threads, after what they are at; if Ctrl-C ends the wait for that, they end by themselves."""
        idle = False
        try:
            self._stop(SessionError("the training was closed."))
            idle = True
        finally:
            with defer_interrupt():
                for thread in self._threads:
                    thread.shutdown(wait=idle)

    # Building ----------------------------------------------------------------------------------------------------

    def _begin(self, active: int) -> None:
        if self._progress.failure is not None:
            self._clear_up()
        self._prepare(active)

    def _clear_up(self) -> None:
        """Wait for all that runs; what failed is raised, and what an interrupt left behind is put in order."""
        self._wait_for(0)
        if self._progress.failure is not None:
            self._stop(self._progress.failure)

    def _prepare(self, active: int) -> None:
        """Build in the calling thread whatever a batch with so many busy replicas will run: graphs grow in one."""
        wanted: list[tuple[Any, ...]] = [("combine",), *(("follow", replica) for replica in range(len(self._threads)))]
        for replica in range(active):
            wanted += [("compute", replica), ("discard", replica)]
            wanted += [("update", replica)] if self._bound is None else []
        if self._bound is not None:
            wanted.append(("update", *range(active)))
        missing = [key for key in wanted if key not in self._calls]
        if missing:
            self._wait_for(0)
        for key in missing:
            graph = self._build(*key)
            self._graph = self._graph or graph
            call = self._session.import_graph(graph, "_".join(map(str, (self._prefix, *key))))
            self._calls[key] = call, graph.inputs

    def _call(self, *key: Any) -> Callable[..., list[Any]]:
        return self._calls[key][0]

    def _build(self, what: str, *replicas: int) -> DistributedGraph:
        item, placement = self.item, self._session.placement
        if what == "combine":
            return loose.combining(item, placement)
        if what == "update":
            return loose.updating(item, placement, replicas)
        one = {"compute": loose.computing, "follow": loose.following, "discard": loose.discarding}[what]
        return one(item, placement, replicas[0])

    # Running -----------------------------------------------------------------------------------------------------

    def _run(self, replica: int, batch: int, feeds: list[Any], counts: tuple[float, float]) -> list[Any]:
        """One replica's part of one batch, in its own thread."""
        progress, ends = self._progress, batch
        try:
            if not self._follow(replica, batch, counts):
                return []
            outputs = self._call("compute", replica)(*feeds, *counts)
            with progress.moved:
                progress.queued[replica] += 1
                if not progress.is_over(batch):
                    ends = 0  # an update that fails is the end of all that are not done
                    self._arrive(replica, batch)
                progress.moved.notify_all()
            return outputs
        except BaseException as failure:
            with progress.moved:
                progress.fail(failure, ends)
            raise

    def _follow(self, replica: int, batch: int, counts: tuple[float, float]) -> bool:
        """Take over the servers' values as no update is writing them; False if the batch is not to be trained."""
        progress = self._progress
        with progress.moved:
            progress.moved.wait_for(lambda: progress.is_over(batch) or self._may_start(batch))
            if progress.is_over(batch):
                return False
            progress.lead = max(progress.lead, batch - progress.version)
            progress.following += 1
        try:
            self._call("follow", replica)(*counts)
        finally:
            with progress.moved:
                progress.following -= 1
                progress.moved.notify_all()
        return True

    def _may_start(self, batch: int) -> bool:
        progress = self._progress
        return not progress.updating and (self._bound is None or batch - progress.version <= self._bound)

    def _arrive(self, replica: int, batch: int) -> None:
        """Run the updates for which everything is there; `moved` is held, and let go of while one runs."""
        progress = self._progress
        progress.arrived[batch] = progress.arrived.get(batch, 0) + 1
        if self._bound is None:
            progress.moved.wait_for(lambda: not progress.updating)
            if progress.is_over(batch):
                return
            self._update(replica)
        while progress.is_complete and not progress.updating:
            active = progress.expected.pop(progress.version)
            del progress.arrived[progress.version]
            if self._bound is not None:
                self._update(*range(active))
            progress.version += 1

    def _update(self, *replicas: int) -> None:
        """Run one update; `moved` is held when this begins and ends, and not while the update runs."""
        progress = self._progress
        progress.updating = True
        try:
            progress.moved.wait_for(lambda: not progress.following)
            # It takes the gradients out of the queues before anything of it can fail.
            progress.queued.subtract(replicas)
            with _released(progress.moved):
                self._call("update", *replicas)(*[1.0] * len(replicas), float(len(replicas)))
        except BaseException as failure:
            progress.fail(failure, 0)
            raise
        finally:
            progress.updating = False
            progress.moved.notify_all()

    def _wait_for(self, most: int) -> None:
        """Wait until no more than so many slices are under way; a replica's failure is raised here."""
        while len(self._running) > most:
            replica, future = self._running[0]
            outputs = _result(future)
            self._running.pop(0)
            if replica == 0:
                self._last = outputs or self._last

    def _stop(self, failure: BaseException) -> None:
        """Let all end what they are at, forget gradients that were not applied, and be ready for another batch."""
        progress = self._progress
        with defer_interrupt(), progress.moved:
            if progress.failure is None:
                progress.fail(failure, 0)
        for _, future in self._running:
            wait_for(future)
        self._running.clear()
        with contextlib.suppress(NodeLostError, BrokenOffError):  # with a node, the queues there are gone
            for replica in list(progress.queued):
                while progress.queued[replica] > 0:
                    progress.queued[replica] -= 1
                    self._call("discard", replica)(1.0, 1.0)
        self._progress = Progress(version=self._next, lead=progress.lead)


@contextlib.contextmanager
def _released(lock: Condition) -> Iterator[None]:
    """Let others have a lock for the time of a block."""
    lock.release()
    try:
        yield
    finally:
        lock.acquire()


def _result(future: Future[list[Any]]) -> list[Any]:
    wait_for(future)
    with defer_interrupt():
        return future.result()
