"""The session of one machine: each step is a function on the user's own variables and the copies of further devices.

In: a placement, captured steps, the user's variables and batches. Out: results. There is no second state: what a step
writes is in the user's variables when it has run. A step builds its distributed graph with the kernels when it first
runs, and makes a function of it::

    session = LocalSession(placement)
    step = session.add(item, variables={"w": w.handle})
    outputs = step([x, y], total=32)         # `w` has its new value

A step that fails leaves the state as it was, and the next step runs.
"""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.interrupts import defer_interrupt
from autodist_core.kernel import DistributedGraph, Placement
from autodist_core.log import stage
from autodist_core.runtime.added_variables import AddedVariables
from autodist_core.runtime.local.copies import Copies
from autodist_core.runtime.local.functions import RESOURCES, Collectives, function_of, part
from autodist_core.runtime.local.profile import Profile
from autodist_core.runtime.local.step import LocalStep
from autodist_core.runtime.protocol import SessionStep, Tie
from autodist_core.runtime.recovery.on_disk import LARGE_BYTES, Away, OnDisk, array_of
from autodist_core.runtime.replicated import ReplicatedSession
from autodist_core.runtime.timings import Run, Timings
from autodist_core.step.graph_item import GraphItem, Variable

_numbers = itertools.count()


class LocalSession(ReplicatedSession):
    """A session on the devices of this machine.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel import Tasks
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS
    >>> session = LocalSession(example_placement(PS(), tasks=Tasks(one_cpu=True)))
    >>> train = session.add(example_step())
    >>> ones = np.ones((3, 1), "float32")
    >>> session.load({"kernel": ones, "velocity": 0 * ones, "iterations": np.int64(0), "total": np.float32(0)})
    >>> loss, norm = train([np.ones((5, 3), "float32")], total=5)
    >>> print(f"{loss:.1f}, {norm:.2f}, {session.read(['kernel'])['kernel'][0, 0]:.1f}")
    9.0, 18.00, 0.4
    >>> session.close()
    """

    on_one_machine = True

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self.copies = Copies(placement)
        self._added = AddedVariables(self.copies.adopt, self._write, self._read)
        self._collectives = Collectives([replica.device for replica in placement.replicas])
        self._resources: dict[str, Any] = {}
        """The tables and queues of this session, by the names that the graphs give them."""
        self._name = f"autodist{next(_numbers)}"
        self._timings: Timings | None = None
        self._profile: Profile | None = None
        """What follows each operation, where somebody asked for that."""
        self._here = threading.local()
        self._on_disk = OnDisk()
        self._half_done: set[str] = set()
        """The variables of which each copy may have what a step wrote that failed."""

    def _include(self, variables: Iterable[Variable], handles: Mapping[str, Any]) -> None:
        self.copies.add(variables, handles)
        self.known = tuple(self.copies.variables)

    def _step(self, item: GraphItem, prefix: str, usual: int | None) -> SessionStep:
        return LocalStep(self, item, prefix, usual)

    def tie(self, name: str) -> Tie:
        """How the user's variable and the copies of it belong together. Loose replicas may be at work on it."""
        if self.copies.home(name) is None:
            return Tie.APART
        return Tie.ONLY if self.copies.is_alone(name) and self.placement.loose is None else Tie.HOME

    @property
    def works_here(self) -> bool:
        """Whether this thread runs a step of the session now."""
        return getattr(self._here, "works", False)

    def spread(self, names: Iterable[str]) -> None:
        """Give the other copies of these variables the value of the user's variable."""
        with defer_interrupt():
            self.copies.spread(name for name in names if name in self._half_done or not self._is_cleared(name))
            self._half_done.difference_update(names)

    def _is_cleared(self, name: str) -> bool:
        """Whether each step clears the other copies of a variable: they have nothing that a change would replace."""
        return self.placement.loose is None and self.copies.variables[name].combined == "sum"

    def _write(self, values: Mapping[str, np.ndarray]) -> None:
        with defer_interrupt():
            for name, value in values.items():
                self.copies.write(name, array_of(value))

    def _read(self, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
        for name in names:
            with defer_interrupt():
                value = self.copies.read(name)
            yield name, value

    def keeps(self, name: str) -> bool:
        """Whether the large value of a variable is on the devices only. A step that fails leaves it as it was."""
        is_apart = self.copies.home(name) is None and self.placement.loose is None
        return is_apart and self.copies.variables[name].byte_size >= LARGE_BYTES

    def last_safe(self, name: str) -> Away | np.ndarray:
        """The current value of a variable. While another thread runs a step, its parts may be those of two steps."""
        with defer_interrupt():
            return self._on_disk.keep(self.copies.read(name), is_own=True)

    def read_kept(self, names: Iterable[str]) -> Mapping[str, Away | np.ndarray]:
        """Read the current values of variables."""
        self.settle()
        return {name: self.last_safe(name) for name in names}

    def slot_of(self, arrays: Sequence[Any]) -> None:
        """Nothing: on one machine, the batch itself is what a step gets."""

    def measure(self, timings: Timings | None) -> None:
        """Measure each step from now on; None ends this."""
        if self._timings is not None and self._profile is not None:  # without timings there is no profile
            profile, self._profile = self._profile, None
            self._timings.add(profile.stop([replica.name for replica in self.placement.replicas]))
        self._timings = timings

    def close(self) -> None:
        """Free the copies. The user's variables keep their values."""
        if not self._open:
            return
        self._open = False
        try:
            self.measure(None)
            for step in self._loose:
                step.close()
        finally:
            self.copies.drop()
            for handle in self._resources.values():
                with contextlib.suppress(tf.errors.OpError):
                    tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
            self._resources.clear()

    # Functions of graphs -----------------------------------------------------------------------------------------

    def import_graph(self, graph: DistributedGraph, prefix: str) -> Callable[..., Any]:
        """Make a function of a distributed graph; return a callable over all its feeds."""
        placeholders = [name for replica in graph.feeds for name in replica] + list(graph.counts)
        attributes = {node.name: node.attr for node in graph.graph_def.node}
        signature = [
            tf.TensorSpec(tf.TensorShape(attributes[name]["shape"].shape), attributes[name]["dtype"].type)
            for name in placeholders
        ]
        return self.function(graph, prefix, signature, lambda tensors: dict(zip(placeholders, tensors, strict=True)))

    def function(
        self, graph: DistributedGraph, prefix: str, signature: Sequence[tf.TensorSpec],
        feeds: Callable[[Sequence[Any]], Mapping[str, Any]], doing: Callable[[], str] = lambda: "a step",
        part_of: Callable[[Sequence[int]], str] = lambda _: "",
    ) -> Callable[..., Any]:
        """Make a function of a distributed graph, which computes from its arguments what is fed.

        For errors, `doing` says what fails, and `part_of` which part of the batch replicas have.
        """
        self._require_open()
        with defer_interrupt(), stage("the import of a graph", "handing a graph to TensorFlow"):
            self._added.add(graph.added)
            handles = {node.name: self._handle(node) for node in graph.graph_def.node if node.op in RESOURCES}
            if graph.initializers:
                nodes = part(graph.graph_def, graph.initializers)
                function_of(nodes, prefix, handles, [], graph.initializers, [], lambda _: {})()
            nodes = part(graph.graph_def, [*graph.outputs, *graph.steps])
            handles |= self._collectives.prepare(nodes)
            function = function_of(nodes, prefix, handles, graph.outputs, graph.steps, signature, feeds)
        types = [spec.dtype for spec in signature]
        count = len(graph.outputs)

        def run(*arrays: Any) -> list[Any]:
            with defer_interrupt():
                tensors = [
                    array if tf.is_tensor(array) else tf.constant(array, dtype)
                    for array, dtype in zip(arrays, types, strict=True)
                ]
                if self._timings is not None and self._timings.follows_operations and self._profile is None:
                    self._profile = Profile()
                begin = Timings.now()
                self._here.works = True
                try:
                    results = function(*tensors)
                except tf.errors.OpError as error:
                    self._half_done.update(self.known)
                    self._describe(error, doing(), part_of)
                    raise
                finally:
                    self._here.works = False
                if self._timings is not None:
                    sizes = (tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors)
                    self._timings.ran(Run(begin, Timings.now(), fed=sum(sizes)))
            return list(results)[:count]

        return run

    def _handle(self, node: Any) -> Any:
        """The resource that a node stands for: a copy, an added variable, a table or a queue."""
        name = node.attr["shared_name"].s.decode()
        if node.op == "VarHandleOp":
            return self.copies.handle(name)
        if name not in self._resources:
            with tf.init_scope(), tf.device(node.device):
                self._resources[name] = _made(node, f"{self._name}/{name}")
        return self._resources[name]


def _made(node: Any, name: str) -> Any:
    """A table or a queue with the attributes of a node."""
    if node.op == "HashTableV2":
        types = node.attr["key_dtype"].type, node.attr["value_dtype"].type
        return tf.raw_ops.HashTableV2(key_dtype=types[0], value_dtype=types[1], shared_name=name)
    return tf.raw_ops.FIFOQueueV2(
        component_types=list(node.attr["component_types"].list.type), capacity=node.attr["capacity"].i, shared_name=name
    )
