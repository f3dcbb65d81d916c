"""The session that holds the state of all replicas and runs distributed steps over a cluster.

In: a placement, a cluster, captured steps and batches. Out: results and values of variables. A step builds its
distributed graph with the kernels when it first runs, and imports the graph into the session::

    session = DistributedSession(placement, cluster)
    step = session.add(item)                 # the graph of the step is not built yet
    session.load({"w": w})
    outputs = step([x, y], total=32)         # builds the graph for this number of active replicas, and runs it
    session.read(["w"])
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from autodist_core.cluster.chief.cluster import Cluster, abandon
from autodist_core.errors import SessionError
from autodist_core.interrupts import defer_interrupt
from autodist_core.kernel import DistributedGraph, Placement
from autodist_core.kernel.added_variables import AddedVariable
from autodist_core.log import stage
from autodist_core.runtime.added_variables import AddedVariables
from autodist_core.runtime.batch_slices import DataSlot, of_machines
from autodist_core.runtime.data_pipelines import DrawnRows, PipelinesOnMachines, of_data
from autodist_core.runtime.interruptible import BrokenOffError, Calls
from autodist_core.runtime.kept_arrays import KeptData
from autodist_core.runtime.protocol import Condition, SessionStep
from autodist_core.runtime.replicated import ReplicatedSession, ReplicatedStep
from autodist_core.runtime.timings import Timings, timed_step
from autodist_core.runtime.transfers import Transfers
from autodist_core.runtime.written_parts import Wanted, WrittenParts
from autodist_core.step.graph_item import GraphItem, Variable

_OF_DATA = (tf.errors.NotFoundError, tf.errors.InternalError, tf.errors.UnknownError)
"""The errors of the network that a dataset can raise too."""


class DistributedSession(ReplicatedSession):
    """A session on the devices of a cluster, until the cluster is lost.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.runtime.example import ONE_SERVER, example_cluster
    >>> from autodist_core.strategy import PS
    >>> session = DistributedSession(example_placement(PS(), tasks=ONE_SERVER), example_cluster())
    >>> train = session.add(example_step())
    >>> ones = np.ones((3, 1), "float32")
    >>> session.load({"kernel": ones, "velocity": 0 * ones, "iterations": np.int64(0), "total": np.float32(0)})
    >>> loss, norm = train([np.ones((5, 3), "float32")], total=5)
    >>> print(f"{loss:.1f}, {norm:.2f}, {session.read(['kernel'])['kernel'][0, 0]:.1f}")
    9.0, 18.00, 0.4
    >>> session.close()
    """

    def __init__(self, placement: Placement, cluster: Cluster) -> None:
        super().__init__(placement)
        self._calls, self._give_back = Calls(cluster.lost), cluster.give_back
        self._session = tf.compat.v1.Session(cluster.target, tf.Graph(), _config(placement))
        self._opened = cluster.sessions
        self._opened.append(self._session)
        self._variables: dict[str, Variable] = {}
        self._added = AddedVariables(self._adopt, self._write, self._read)
        self._transfers: Any = Transfers(self._session, placement, self.call)
        self._parts: Any = WrittenParts(self._session, self.call)
        self._data: Any = KeptData(self._session, placement, self.call)
        self._pipelines = PipelinesOnMachines(self._session, placement, self.call)
        self._timings: Timings | None = None

    def _adopt(self, variable: AddedVariable) -> None:
        self._variables[variable.name] = self._transfers.adopt(variable)

    def _include(self, variables: Iterable[Variable], handles: Mapping[str, Any]) -> None:
        for variable in variables:
            if variable.handle:
                self._variables.setdefault(variable.name, variable)
        self.known = tuple(name for name, variable in self._variables.items() if variable.handle)

    def _step(self, item: GraphItem, prefix: str, usual: int | None) -> SessionStep:
        return Step(self, item, prefix, usual)

    def _write(self, values: Mapping[str, Any]) -> None:
        self._transfers.load([self._variables[name] for name in values], values)

    def _read(self, names: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
        return self._transfers.read_each([self._variables[name] for name in names])

    def write_large(self, path: str, names: Iterable[str]) -> frozenset[str]:
        """Let the machines write what they have of large variables; return the names of these."""
        self._require_open()
        found: Wanted = self._transfers.sources(self._variables[name] for name in names)
        chief = self.placement.tasks.chief
        large = {name: each for name, each in found.items() if WrittenParts.takes(each[0], each[1], chief)}
        # Replicas that do not wait for each other would have to settle first.
        writes = large and self.placement.loose is None and self._parts.write(path, large)
        return frozenset(large if writes else ())

    def forget(self, names: Iterable[str]) -> None:
        """Free the copies of variables in the memory of the chief's machine."""
        self._require_open()
        self._give_back(self._transfers.forget([self._variables[name] for name in names]))

    def remember(self, values: Mapping[str, Any]) -> None:
        """Write the copies that `forget` has freed."""
        self._require_open()
        self._transfers.load([self._variables[name] for name in values], values, here=True)

    def slot_of(self, arrays: Sequence[Any]) -> DataSlot | None:
        """Where the machines keep the arrays of a batch, or make the batch; None if the batch itself is fed."""
        data = of_machines(arrays)
        if not data:
            return None
        self._require_open()
        if isinstance(data[0], DrawnRows):
            return self._pipelines.slot_of(data[0].batch)
        return self._data.slot_of(data[0].source)

    def release_kept(self) -> None:
        """Free the memory of the arrays that the machines keep, and end the data pipelines there."""
        self._require_open()
        self._data.release()
        self._pipelines.release()

    def measure(self, timings: Timings | None) -> None:
        """Measure each step from now on; None ends this."""
        self._timings = timings

    def close(self) -> None:
        """Free the state. The session is closed from the beginning of this call on, even if the call is interrupted."""
        self._open = False
        session, self._session = self._session, None
        if session is None:
            return
        self._opened.remove(session)
        end = partial(self._pipelines.close, partial(self._end, session))
        try:
            for step in self._loose:
                step.close()
        except BaseException:
            # Replicas still run. This thread waits for their end, and then ends TensorFlow's session.
            threading.Thread(target=end, daemon=True, name="autodist-end").start()
            raise
        else:
            end()
        finally:
            # Steps may still have this session. TensorFlow's is freed when nothing here refers to it.
            self._transfers = self._parts = self._data = None

    def _end(self, session: Any, pipelines_ended: bool) -> None:
        """End TensorFlow's session. Its close would wait for ever for servers that are gone or run pipelines."""
        try:
            if pipelines_ended:
                self.call("the end of the session", session.close)
            else:
                abandon(session)
        except SessionError:
            abandon(session)
        finally:
            self._calls.close()

    def call(self, doing: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call into TensorFlow. The wait for the result ends when a node is lost."""
        return self._calls(doing, call, *arguments)

    def import_graph(
        self, graph: DistributedGraph, prefix: str, doing: Callable[[], str] = lambda: "a step",
        part: Callable[[Sequence[int]], str] = lambda _: "",
    ) -> Callable[..., Any]:
        """Make a distributed graph part of the session; return a callable over all its feeds.

        For errors, `doing` says what fails, and `part` which part of the batch replicas have.
        """
        self._require_open()
        # An interrupted import would leave nodes whose names the next import needs.
        with defer_interrupt():
            self._added.add(graph.added)
            with self._session.graph.as_default(), stage("the import of a graph", "handing a graph to TensorFlow"):
                tf.graph_util.import_graph_def(graph.graph_def, name=prefix)
        initializers = [self._session.graph.get_operation_by_name(f"{prefix}/{name}") for name in graph.initializers]
        if initializers:
            self.call("the setting up of a step", self._session.run, initializers)
        # A callable made from options calls the runtime directly. One of `make_callable` walks its feeds in Python.
        feeds = [name for replica in graph.feeds for name in replica] + list(graph.counts)
        tensors = [self._tensor(prefix, name) for name in feeds]
        outputs = [self._tensor(prefix, name) for name in graph.outputs]
        targets = [self._session.graph.get_operation_by_name(f"{prefix}/{name}") for name in graph.steps]
        options = config_pb2.CallableOptions(
            feed=[tensor.name for tensor in tensors],
            fetch=[tensor.name for tensor in outputs],
            target=[operation.name for operation in targets],
        )
        call = self.call("the setting up of a step", self._session._make_callable_from_options, options)
        types = [tensor.dtype.as_numpy_dtype for tensor in tensors]
        collective = graph.collectives > 0
        timed = partial(timed_step, call, self._session.run, tensors, outputs, targets, self.placement.nodes)

        def run(*arrays: Any) -> Any:
            step = call if self._timings is None else partial(timed, self._timings)
            return self._run_step(collective, doing(), part, step, *map(np.asarray, arrays, types))

        return run

    def _run_step(self, collective: bool, doing: str, part: Callable[[Sequence[int]], str], *call: Any) -> Any:
        try:
            return self._call_of_step(doing, *call)
        except tf.errors.OpError as error:
            self._describe(error, doing, part)
            # A replica that waits for tensors of the failed step fails too, sometimes before TensorFlow tells it to
            # stop. Then TensorFlow ends all collectives of that replica's server for good. And the next step gets the
            # number of the failed one. A late clean-up of the failed step would then hit the next step, and the next
            # step would hang.
            if collective:
                self.condition = Condition.SPOILT
            raise

    def _call_of_step(self, doing: str, *call: Any) -> Any:
        try:
            return self.call(doing, *call)
        except BrokenOffError as error:
            # The network is whole. An error of the data, such as a missing file, may be of the same class as one of it.
            if isinstance(error.__cause__, _OF_DATA) and of_data(str(error.__cause__)):
                raise error.__cause__ from None
            raise

    def _tensor(self, prefix: str, name: str) -> Any:
        return self._session.graph.get_tensor_by_name(f"{prefix}/{name}" if ":" in name else f"{prefix}/{name}:0")


class Step(ReplicatedStep):
    """One captured function in a session over a cluster: what a replica gets of the batch is fed, or is there already.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.runtime.example import ONE_SERVER, example_batch, example_cluster, example_values
    >>> from autodist_core.strategy import PS
    >>> session = DistributedSession(example_placement(PS(), tasks=ONE_SERVER), example_cluster())
    >>> train = session.add(example_step())
    >>> session.load(example_values())
    >>> [type(output).__name__ for output in train([example_batch(5)], 5)]
    ['float32', 'float32']
    >>> session.close()
    """

    def _run(self, call: Callable[..., Any], arrays: Sequence[Any], total: int, slot: Any) -> list[Any]:
        assert self.graph is not None
        bounds = self._bounds
        feeds = [
            array for replica, (start, stop) in enumerate(bounds)
            for array in self._slicer.rows(arrays, self.graph.inputs, replica, start, stop, slot)
        ]
        counts = () if total == self._usual else (*(float(stop - start) for start, stop in bounds), float(total))
        with nullcontext() if slot is None else slot.running(of_machines(arrays), len(bounds)):
            return call(*feeds, *counts)

    def _import(self, graph: DistributedGraph, name: str, arrays: Sequence[Any], usual: bool) -> Callable[..., Any]:
        return self._session.import_graph(graph, name, self._doing, self._part)


def _config(placement: Placement) -> Any:
    # The servers outlive a session. Isolated, a session has variables of its own, which its close frees.
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True, isolate_session_state=True)
    config.experimental.collective_group_leader = f"/job:{placement.tasks.job}/replica:0/task:0"
    # A collective works in no function that is called. The graph optimizer puts functions in place of their calls.
    # With this setting they get there without it, too.
    config.graph_options.optimizer_options.do_function_inlining = True
    _follow_optimizer_options(config.graph_options.rewrite_options)
    return config


def _follow_optimizer_options(rewrite: Any) -> None:
    """Apply the settings of `tf.config.optimizer` to the session's graph optimizer."""
    enums = [field for field in rewrite.DESCRIPTOR.fields if field.enum_type]
    switches = {field.name for field in enums if field.enum_type.name == "Toggle"}
    for name, value in tf.config.optimizer.get_experimental_options().items():
        if name in switches:
            setattr(rewrite, name, rewrite.ON if value else rewrite.OFF)
        elif name == "disable_meta_optimizer":
            rewrite.disable_meta_optimizer = value
