"""A training step of loose replicas: they do not wait for each other, up to a bound or without one.

In: a captured training step and batches. Out: the first replica's results, and the state after all updates. Every
replica has a thread. For each batch the thread runs the first three of the five graphs of
`autodist_core.kernel.loose_graphs` (discard and combine run when a step has failed or has to be settled)::

    follow     copy the servers' values to the replica's mirrors
    compute    compute on the replica's slice of the batch, and put the gradients into the replica's queue
    update     take gradients out of the queues, and update the servers' variables

The thread that adds the last missing gradient runs the update. With a bound, an update uses all replicas' gradients of
one batch, in the order of the batches. No replica starts a batch before the update of the batch `bound` steps earlier.
Without a bound, each replica's gradients are an update of their own, as soon as they are computed.
"""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from typing import Any

from autodist_core.errors import NodeLostError, SessionError
from autodist_core.interrupts import defer_interrupt, wait_for
from autodist_core.kernel import DistributedGraph
from autodist_core.kernel.loose_graphs import loose_graph
from autodist_core.runtime.batch_slices import BatchSlicer, of_machines
from autodist_core.runtime.data_pipelines import DrawnRows
from autodist_core.runtime.interruptible import BrokenOffError
from autodist_core.runtime.kept_arrays import KeptArrays, KeptRows, KeptSlot
from autodist_core.runtime.progress import Progress
from autodist_core.runtime.protocol import SessionStep
from autodist_core.step.graph_item import GraphItem

_AHEAD = 4  # unfinished batches for each replica without a bound: enough to keep every replica busy


class LooseStep(SessionStep):
    """One captured training step over replicas that do not wait for each other.

    >>> from autodist_core.runtime.example import example_batch, example_session
    >>> from autodist_core.strategy import PS
    >>> session, train = example_session(PS(staleness=2))
    >>> for _ in range(4):
    ...     outputs = train([example_batch(5)], total=5)
    >>> train.settle()
    >>> session.read(["iterations"])["iterations"].item()
    4
    >>> session.close()
    """

    def __init__(self, session: Any, item: GraphItem, prefix: str) -> None:
        self._session = session
        self._prefix = prefix
        self._slicer = BatchSlicer(item)
        self._bound: int | None = None if session.placement.loose == inf else session.placement.loose
        self._progress = Progress()
        self._threads = [ThreadPoolExecutor(1, f"autodist-{replica.name}") for replica in session.placement.replicas]
        self._running: list[tuple[int, Future[list[Any]]]] = []
        self._next = 0
        self._unsettled = False
        self._last: list[Any] = []
        self._source: KeptArrays | None = None
        self._slot: KeptSlot | None = None
        """The arrays of the current data that the machines keep, and where; None if batches are fed."""
        self._calls: dict[tuple[Any, ...], tuple[Callable[..., list[Any]], tuple[int, ...]]] = {}
        self.item = item

    def __call__(self, arrays: Sequence[Any], total: int) -> list[Any]:
        """Hand out one batch; return the first replica's results of the last batch that it finished."""
        self._session.settle(but=self)
        count = len(self._threads)
        bounds = self._slicer.bounds(arrays, total, count)
        active = len(bounds)
        try:
            self._begin(active, arrays)
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
            call, inputs = self._calls[self._compute(replica)]
            feeds = self._slicer.rows(arrays, inputs, replica, start, stop, self._slot)
            # Without a bound, a replica's slice counts as a batch of its own.
            counts = float(stop - start), float(total if self._bound is not None else stop - start)
            future = self._threads[replica].submit(self._run, replica, batch, call, feeds, counts)
            self._running.append((replica, future))

    def settle(self) -> None:
        """Wait until all batches are done. Then give all replicas the last values, and combine their side state."""
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
        """End the threads after their current work. If Ctrl-C ends the wait, the threads end by themselves."""
        idle = False
        try:
            self._stop(SessionError("the training was closed."))
            idle = True
        finally:
            with defer_interrupt():
                for thread in self._threads:
                    thread.shutdown(wait=idle)

    # Building ----------------------------------------------------------------------------------------------------

    def _begin(self, active: int, arrays: Sequence[Any]) -> None:
        if self._progress.failure is not None:
            self._clear_up()
        first = next(iter(of_machines(arrays)), None)
        if isinstance(first, DrawnRows) and not first.batch.source.pipeline.fed:
            first.batch.source.pipeline.feed("the replicas of this strategy do not wait for each other")
        source = first.source if isinstance(first, KeptRows) else None
        if source is not self._source:
            # Only one thread may extend the session's graph.
            self._wait_for(0)
            self._slot = self._session.slot_of(arrays) if source is not None else None
            self._source = source
        self._prepare(active)

    def _clear_up(self) -> None:
        """Wait for all unfinished slices. A failure is raised; after an interrupt, the queues are emptied."""
        self._wait_for(0)
        if self._progress.failure is not None:
            self._stop(self._progress.failure)

    def _prepare(self, active: int) -> None:
        """Build the missing graphs for a batch with so many active replicas, in the calling thread.

        Only one thread may extend the session's graph.
        """
        wanted: list[tuple[Any, ...]] = [("combine",), *(("follow", replica) for replica in range(len(self._threads)))]
        for replica in range(active):
            wanted += [self._compute(replica), ("discard", replica)]
            wanted += [("update", replica)] if self._bound is None else []
        if self._bound is not None:
            wanted.append(("update", *range(active)))
        missing = [key for key in wanted if key not in self._calls]
        if missing:
            self._wait_for(0)
        for key in missing:
            graph = self._build(*key)
            self.graph = self.graph or graph  # the first one, which combines the replicas' side state
            call = self._session.import_graph(graph, "_".join(map(str, (self._prefix, *key))))
            self._calls[key] = call, graph.inputs

    def _compute(self, replica: int) -> tuple[Any, ...]:
        """The key of the graph in which a replica computes, on what is fed or on what its machine keeps."""
        return "compute", replica, *([self._slot.name] if self._slot else [])

    def _call(self, *key: Any) -> Callable[..., list[Any]]:
        return self._calls[key][0]

    def _build(self, what: str, *replicas: Any) -> DistributedGraph:
        placement = self._session.placement
        if what != "compute":
            return loose_graph(what, self.item, placement, *replicas)
        graph = loose_graph(what, self.item, placement, replicas[0])
        return self._slot.put_into(graph, placement.replicas[replicas[0] :], ()) if self._slot is not None else graph

    # Running -----------------------------------------------------------------------------------------------------

    def _run(
        self, replica: int, batch: int, compute: Callable[..., list[Any]], feeds: list[Any], counts: tuple[float, float]
    ) -> list[Any]:
        """One replica's part of one batch, in its own thread."""
        progress, ends = self._progress, batch
        try:
            if not self._follow(replica, batch, counts):
                return []
            outputs = compute(*feeds, *counts)
            with progress.moved:
                progress.queued[replica] += 1
                if not progress.is_over(batch):
                    ends = 0  # a failed update ends all unfinished batches
                    self._arrive(replica, batch)
                progress.moved.notify_all()
            return outputs
        except BaseException as failure:
            with progress.moved:
                progress.fail(failure, ends)
            raise

    def _follow(self, replica: int, batch: int, counts: tuple[float, float]) -> bool:
        """Copy the servers' values while no update writes them; return False if the batch is not trained."""
        progress = self._progress
        with progress.moved:
            progress.moved.wait_for(lambda: progress.is_over(batch) or self._may_start(batch))
            if progress.is_over(batch):
                return False
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
        """Run the updates whose gradients have all arrived. The caller has `moved`; a running update releases it."""
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
        """Run one update. The caller has `moved` before and after this; it is released while the update runs."""
        progress = self._progress
        progress.updating = True
        try:
            progress.moved.wait_for(lambda: not progress.following)
            # The update takes the gradients out of the queues before any other operation of it can fail.
            progress.queued.subtract(replicas)
            progress.moved.release()
            try:
                self._call("update", *replicas)(*[1.0] * len(replicas), float(len(replicas)))
            finally:
                progress.moved.acquire()
        except BaseException as failure:
            progress.fail(failure, 0)
            raise
        finally:
            progress.updating = False
            progress.moved.notify_all()

    def _wait_for(self, most: int) -> None:
        """Wait until at most so many slices are unfinished. A replica's failure is raised here."""
        while len(self._running) > most:
            replica, future = self._running[0]
            outputs = _result(future)
            self._running.pop(0)
            if replica == 0:
                self._last = outputs or self._last

    def _stop(self, failure: BaseException) -> None:
        """Wait for the replicas' current work, discard gradients that were not applied, and reset the progress."""
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
        self._progress = Progress(version=self._next)


def _result(future: Future[list[Any]]) -> list[Any]:
    wait_for(future)
    with defer_interrupt():
        return future.result()
