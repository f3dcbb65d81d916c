"""What the sessions of one machine and over a cluster have in common, and what their steps have in common.

In: captured steps and batches. Out: for each batch, a division into the replicas' parts and a distributed graph. A step
builds a graph for each number of active replicas, for batches of its usual size, and for each place where data is kept.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autodist_core.errors import SessionError, amount
from autodist_core.kernel import DistributedGraph, Placement, build, factor_limits
from autodist_core.log import stage
from autodist_core.runtime.added_variables import AddedVariables
from autodist_core.runtime.batch_slices import BatchSlicer, of_machines
from autodist_core.runtime.failed_replicas import failed_replicas, said
from autodist_core.runtime.loose_steps import LooseStep
from autodist_core.runtime.protocol import Session, SessionStep
from autodist_core.runtime.timings import graph_name
from autodist_core.step.graph_item import GraphItem, Variable


class ReplicatedSession(Session):
    """A session that has the replicas' variables itself.

    >>> from autodist_core.runtime.example import example_session
    >>> from autodist_core.strategy import PS
    >>> session, train = example_session(PS())
    >>> isinstance(session, ReplicatedSession), isinstance(train, ReplicatedStep)
    (True, True)
    >>> session.close()
    """

    _added: AddedVariables
    """The variables that kernels added. They are none of the known ones."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self._open = True
        self._functions = 0
        self._loose: list[LooseStep] = []

    @abstractmethod
    def _include(self, variables: Iterable[Variable], handles: Mapping[str, Any]) -> None:
        """Note the variables of a step, with the handles of the user's variables."""

    @abstractmethod
    def _step(self, item: GraphItem, prefix: str, usual: int | None) -> SessionStep:
        """A step whose replicas wait for each other."""

    def add(self, item: GraphItem, usual: int | None = None, variables: Mapping[str, Any] | None = None) -> SessionStep:
        """Add a step to this session: a loose step if the placement says so and the step trains."""
        self._include(item.variables, variables or {})
        self._functions += 1
        name = f"function{self._functions}"
        if not item.gradients or self.placement.loose is None:
            return self._step(item, name, usual)
        self._loose.append(LooseStep(self, item, name))
        return self._loose[-1]

    @abstractmethod
    def _write(self, values: Mapping[str, Any]) -> None:
        """Write every copy of these variables."""

    @abstractmethod
    def _read(self, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Read the current values of variables."""

    def _require_open(self) -> None:
        if not self._open:
            raise SessionError("this distributed session is closed; call fit again to open a new one.")

    def load(self, values: Mapping[str, Any]) -> None:
        """Write every copy of these variables."""
        self._require_open()
        if values:
            self.settle()
            self._write(values)

    def read_each(self, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
        """Read the current values of variables, one after the other."""
        self._require_open()
        if names := tuple(names):
            self.settle()
            yield from self._read(names)

    def read_added(self) -> dict[str, np.ndarray]:
        """Read the variables that kernels added, such as the residuals of compressors, by name."""
        self._require_open()
        return self._added.read()

    def load_added(self, values: Mapping[str, np.ndarray]) -> None:
        """Set the variables that kernels added. A variable without a value here gets its initial value."""
        self._require_open()
        self._added.load(values)

    def settle(self, stays: bool = False, but: LooseStep | None = None) -> None:
        """Wait until no replica is at work, and combine the replicas' side state. The step `but` is left out."""
        for step in self._loose:
            if step is not but:
                step.settle()

    def _describe(self, error: Any, doing: str, part: Callable[[Sequence[int]], str]) -> None:
        """Note at an error which replicas failed. A task that TensorFlow's message names may only have passed it on:
        the graph node that the message names has failed.
        """
        failed = failed_replicas(str(error), self.placement)
        for replicas in failed:
            error.add_note(f"This happened on {said(replicas, self.placement)}, during {doing}{part(replicas)}.")
        if not failed:
            error.add_note(f"This happened during {doing}.")


class ReplicatedStep(SessionStep):
    """One captured function whose replicas wait for each other.

    >>> from autodist_core.runtime.example import example_batch, example_session
    >>> from autodist_core.strategy import PS
    >>> session, train = example_session(PS())
    >>> for total in (5, 1):
    ...     outputs = train([example_batch(total)], total)
    >>> {name: round(value.item(), 2) for name, value in session.read(["iterations", "total"]).items()}
    {'iterations': 2, 'total': 10.44}
    >>> session.close()
    """

    def __init__(self, session: Any, item: GraphItem, prefix: str, usual: int | None = None) -> None:
        self._session = session
        self._prefix = prefix
        self._usual = usual
        self._calls: dict[tuple[int, bool, Any, int], tuple[Callable[..., Any], DistributedGraph]] = {}
        self._limits = factor_limits(item, session.placement)
        self._slicer = BatchSlicer(item)
        self._steps = 0
        self._bounds: Sequence[tuple[int, int]] = ()
        """The first example of each replica in the current batch, and the one behind its last."""
        self.item = item

    @abstractmethod
    def _import(self, graph: DistributedGraph, name: str, arrays: Sequence[Any], usual: bool) -> Callable[..., Any]:
        """Hand a graph to TensorFlow; return what runs it."""

    @abstractmethod
    def _run(self, call: Callable[..., Any], arrays: Sequence[Any], total: int, slot: Any) -> list[Any]:
        """Run the graph of the current batch on its arrays."""

    def __call__(self, arrays: Sequence[Any], total: int) -> list[Any]:
        """Run one step on a batch of `total` examples; return the step's outputs for the whole batch."""
        self._session.settle()
        self._steps += 1
        self._bounds = self._slicer.bounds(arrays, total, len(self._session.placement.replicas))
        slot = self._session.slot_of(arrays)
        key = len(self._bounds), total == self._usual, slot, sum(limit < total for limit in self._limits)
        if key not in self._calls:
            self._calls[key] = self._build(*key, arrays)
        call, self.graph = self._calls[key]
        return self._run(call, arrays, total, slot)

    def _build(
        self, active: int, usual: bool, slot: Any, whole: int, arrays: Sequence[Any]
    ) -> tuple[Callable[..., Any], DistributedGraph]:
        what = f"the graph of {amount(active, 'replica')}"
        with stage(what, f"building {what}"):
            sizes, placement = [stop - start for start, stop in self._bounds], self._session.placement
            graph = build(self.item, placement, active, sizes=sizes if usual else (), examples=sum(sizes))
            if slot is not None:
                graph = slot.put_into(graph, placement.replicas, of_machines(arrays))
        name = graph_name(self._prefix, active, usual, slot.name if slot else "", whole)
        return self._import(graph, name, arrays, usual), graph

    def _doing(self) -> str:
        return f"{'training' if self.item.gradients else 'inference'} step {self._steps}"

    def _part(self, replicas: Sequence[int]) -> str:
        """Which examples neighbouring replicas have. TensorFlow counts positions from a replica's first one."""
        start, stop = self._bounds[replicas[0]][0], self._bounds[replicas[-1]][1]
        return f" with examples {start} to {stop - 1} of the batch" if len(self._bounds) > 1 else ""
