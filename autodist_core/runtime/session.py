"""A session that holds the state of all replicas and runs distributed steps on it, here or over a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from autodist_core.cluster import Cluster
from autodist_core.errors import NodeLostError, SessionError
from autodist_core.graph_item import GraphItem, Variable
from autodist_core.kernel import DistributedGraph, Placement, build
from autodist_core.kernel.placement import Copy
from autodist_core.runtime.batches import Batches, slices
from autodist_core.runtime.calls import Calls
from autodist_core.runtime.kept import KeptVariables
from autodist_core.runtime.loose import LooseStep

_GOLDEN = 0x9E3779B9


class DistributedSession:
    """The state of every replica and owner, and the steps that change it."""

    def __init__(self, placement: Placement, cluster: Cluster | None = None) -> None:
        self.placement = placement
        self._graph = tf.Graph()
        self._calls_of_cluster = Calls(cluster.lost, [each.name for each in placement.replicas]) if cluster else None
        target = cluster.target if cluster else ""
        self._session = tf.compat.v1.Session(target, self._graph, _config(placement))
        self._kept = KeptVariables(self._graph, self._run)
        self._variables: dict[str, Variable] = {}
        self._loaders: dict[str, tuple[list[Any], list[Any]]] = {}
        self._readers: dict[str, Any] = {}
        self._calls: dict[tuple[str, ...], Callable[..., Any]] = {}
        self._functions = 0
        self._loose: list[LooseStep] = []

    @property
    def lost(self) -> bool:
        """Whether what it held is gone: see `LastingSession`, which holds what is safe."""
        return False

    @property
    def known(self) -> tuple[str, ...]:
        """The variables that the steps of this session touch."""
        return tuple(self._variables)

    def add(self, item: GraphItem) -> AnyStep:
        """A step of this session; its graph is built when it first runs."""
        for variable in item.variables:
            if variable.handle:
                self._variables.setdefault(variable.name, variable)
        self._functions += 1
        name = f"function{self._functions}"
        if not item.gradients or self.placement.loose is None:
            return Step(self, item, name)
        self._loose.append(LooseStep(self, item, name))
        return self._loose[-1]

    def settle(self, but: LooseStep | None = None) -> None:
        """Wait until no replica is at work, except on one step, and make what they wrote on the side one state."""
        for step in self._loose:
            if step is not but:
                step.settle()

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Write variables, every copy of each."""
        self._require_open()
        if not values:
            return
        self.settle()
        feeds: list[Any] = []
        arrays: list[np.ndarray] = []
        operations: list[Any] = []
        for name, value in values.items():
            if name not in self._loaders:
                self._loaders[name] = self._make_loader(self._variables[name])
            placeholders, assigns = self._loaders[name]
            variants = [_for_copy(self._variables[name], copy, value) for copy in self._distinct(name)] or [value]
            feeds += placeholders
            arrays += variants
            operations += assigns
        if operations:
            key = ("load", *values)
            if key not in self._calls:
                self._calls[key] = self._session.make_callable(operations, feed_list=feeds)
            self.call("the loading of variables", self._calls[key], *arrays)

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """The current value of variables."""
        self._require_open()
        names = tuple(names)
        if not names:
            return {}
        self.settle()
        for name in names:
            if name not in self._readers:
                self._readers[name] = self._make_reader(self._variables[name])
        key = ("read", *names)
        if key not in self._calls:
            self._calls[key] = self._session.make_callable([self._readers[name] for name in names])
        return dict(zip(names, self.call("the reading of variables", self._calls[key]), strict=True))

    def read_kept(self) -> dict[str, np.ndarray]:
        """What kernels keep between steps, such as the residuals of compressors, by name."""
        self._require_open()
        return self._kept.read()

    def load_kept(self, values: Mapping[str, np.ndarray]) -> None:
        """Set what kernels keep; what is not among the values starts anew."""
        self._require_open()
        self._kept.load(values)

    def close(self) -> None:
        """Free the state; the session cannot be used afterwards."""
        for step in self._loose:
            step.close()
        if self._session is not None and self._calls_of_cluster is None:
            self._session.close()
        elif self._session is not None and self._calls_of_cluster is not None:
            try:
                self.call("the end of the session", self._session.close)
            except NodeLostError:
                _abandon(self._session)
            self._calls_of_cluster.close()
        self._session = None
        self._graph = None
        self._kept.drop()
        self._calls.clear()

    def call(self, doing: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call into TensorFlow; over a cluster so that the wait for it ends when a node is lost."""
        if self._calls_of_cluster is None:
            return call(*arguments)
        return self._calls_of_cluster(doing, call, *arguments)

    def _run(self, *arguments: Any) -> Any:
        return self.call("the setting of kept variables", self._session.run, *arguments)

    def _require_open(self) -> None:
        if self._session is None:
            raise SessionError("this distributed session is closed; call fit again to open a new one.")

    def _distinct(self, name: str) -> list[Copy]:
        """Copies that may be loaded with different values, the common one first."""
        copies = self.placement.copies(name)
        variable = self._variables[name]
        return [copy for index, copy in enumerate(copies) if index == 0 or _is_own(variable, copy)]

    def _make_loader(self, variable: Variable) -> tuple[list[Any], list[Any]]:
        dtype = tf.as_dtype(variable.dtype)
        placeholders: list[Any] = []
        assigns: list[Any] = []
        with self._graph.as_default():
            for copy in self.placement.copies(variable.name):
                if not placeholders or _is_own(variable, copy):
                    with tf.device(self.placement.tasks.chief):
                        placeholders.append(tf.compat.v1.placeholder(dtype, variable.shape))
                    source = placeholders[-1]
                else:
                    source = placeholders[0]
                with tf.device(copy.device):
                    assigns.append(tf.raw_ops.AssignVariableOp(resource=_handle(variable, copy), value=source))
            parts = self.placement.parts.get(variable.name, ())
            if parts and not placeholders:
                with tf.device(self.placement.tasks.chief):
                    placeholders.append(tf.compat.v1.placeholder(dtype, variable.shape))
            for part in parts:
                begin = [part.offset if axis == part.axis else 0 for axis in range(len(part.shape))]
                for copy in self.placement.copies(part.name):
                    with tf.device(copy.device):
                        piece = tf.slice(placeholders[0], begin, part.shape)
                        assigns.append(tf.raw_ops.AssignVariableOp(resource=_handle(part, copy), value=piece))
        return placeholders, assigns

    def _make_reader(self, variable: Variable) -> Any:
        parts = self.placement.parts.get(variable.name, ())
        if parts:
            pieces = [self._make_reader(part) for part in parts]
            with self._graph.as_default(), tf.device(self.placement.tasks.chief):
                return tf.concat(pieces, axis=parts[0].axis)
        copy = self.placement.copies(variable.name)[0]
        with self._graph.as_default(), tf.device(copy.device):
            return tf.raw_ops.ReadVariableOp(resource=_handle(variable, copy), dtype=tf.as_dtype(variable.dtype))

    def import_graph(
        self, graph: DistributedGraph, prefix: str, doing: Callable[[], str] = lambda: "a step"
    ) -> Callable[..., Any]:
        """Make a distributed graph part of the session; returns a callable over all its feeds."""
        self._require_open()
        self._kept.add(graph.kept)
        with self._graph.as_default():
            tf.graph_util.import_graph_def(graph.graph_def, name=prefix)
        initializers = [self._graph.get_operation_by_name(f"{prefix}/{name}") for name in graph.initializers]
        if initializers:
            self._run(initializers)
        # Made from options, a callable goes straight to the runtime; `make_callable` walks its feeds in Python.
        feeds = [name for replica in graph.feeds for name in replica] + [*graph.examples, graph.total]
        tensors = [self._tensor(prefix, name) for name in feeds]
        options = config_pb2.CallableOptions(
            feed=[tensor.name for tensor in tensors],
            fetch=[self._tensor(prefix, name).name for name in graph.outputs],
            target=[f"{prefix}/{name}" for name in graph.steps],
        )
        call = self.call("the setting up of a step", self._session._make_callable_from_options, options)
        types = [tensor.dtype.as_numpy_dtype for tensor in tensors]
        if self._calls_of_cluster is None:
            return lambda *arrays: call(*map(np.asarray, arrays, types))
        return lambda *arrays: self.call(doing(), call, *map(np.asarray, arrays, types))

    def _tensor(self, prefix: str, name: str) -> Any:
        return self._graph.get_tensor_by_name(f"{prefix}/{name}" if ":" in name else f"{prefix}/{name}:0")


class Step:
    """One captured function, distributed: call it with the arrays of a whole batch."""

    def __init__(self, session: DistributedSession, item: GraphItem, prefix: str) -> None:
        self._session = session
        self._prefix = prefix
        self._callables: dict[int, tuple[Callable[..., Any], tuple[int, ...]]] = {}
        self._batches = Batches(item)
        self._steps = 0
        self.item = item
        self.graph: DistributedGraph | None = None

    def __call__(self, arrays: Sequence[Any], total: int) -> list[Any]:
        """Run one step on a batch of `total` examples; returns the step's outputs for the whole batch."""
        self._session.settle()
        self._steps += 1
        count = len(self._session.placement.replicas)
        active = max(1, min(total, count))
        if active not in self._callables:
            self._callables[active] = self._build(active)
        call, inputs = self._callables[active]
        if active == 1:
            return call(*(arrays[index] for index in inputs), float(total), float(total))
        bounds = slices(total, count)[:active]
        feeds = [array for start, stop in bounds for array in self._batches.part(arrays, inputs, start, stop)]
        return call(*feeds, *(float(stop - start) for start, stop in bounds), float(total))

    def _build(self, active: int) -> tuple[Callable[..., Any], tuple[int, ...]]:
        graph = build(self.item, self._session.placement, active)
        self.graph = self.graph or graph
        return self._session.import_graph(graph, f"{self._prefix}_{active}", self._doing), graph.inputs

    def _doing(self) -> str:
        return f"{'training' if self.item.gradients else 'inference'} step {self._steps}"


AnyStep = Step | LooseStep


def _is_own(variable: Variable, copy: Copy) -> bool:
    """Whether a copy starts from another value than the first one: sums from zero, seeds from their own stream."""
    return bool(copy.replica) and (variable.kind == "seed" or variable.aggregation == "sum")


def _for_copy(variable: Variable, copy: Copy, value: np.ndarray) -> np.ndarray:
    if not _is_own(variable, copy):
        return value
    if variable.kind == "seed":
        offset = np.array(value, copy=True)
        bits = offset.view(f"u{offset.dtype.itemsize}")
        bits[0] = (int(bits[0]) + (copy.replica or 0) * _GOLDEN) % (1 << 8 * bits.itemsize)
        return offset
    return np.zeros_like(value)


def _handle(variable: Variable, copy: Copy) -> Any:
    return tf.raw_ops.VarHandleOp(
        dtype=tf.as_dtype(variable.dtype), shape=variable.shape, shared_name=copy.name, name=None
    )


def _abandon(session: Any) -> None:
    """Let go of a session whose servers are gone: all it would do at its end is to call them, and wait for ever."""
    session._closed, session._session = True, None


def _config(placement: Placement) -> Any:
    config = _cluster_config(placement) if placement.tasks.job else _local_config(placement)
    _follow_optimizer_options(config.graph_options.rewrite_options)
    return config


def _cluster_config(placement: Placement) -> Any:
    # The servers outlive a session: what it holds is its own, and freed when it is closed.
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True, isolate_session_state=True)
    config.experimental.collective_group_leader = f"/job:{placement.tasks.job}/replica:0/task:0"
    return config


def _local_config(placement: Placement) -> Any:
    devices = [replica.device for replica in placement.replicas] + [owner.device for owner in placement.owners]
    cpus = max([int(device.rsplit(":", 1)[1]) for device in devices if ":CPU:" in device], default=0) + 1
    config = tf.compat.v1.ConfigProto(device_count={"CPU": cpus}, allow_soft_placement=True)
    config.gpu_options.allow_growth = True
    return config


def _follow_optimizer_options(rewrite: Any) -> None:
    """What `tf.config.optimizer` says of TensorFlow's graph optimizer holds for the session too."""
    enums = [field for field in rewrite.DESCRIPTOR.fields if field.enum_type]
    switches = {field.name for field in enums if field.enum_type.name == "Toggle"}
    for name, value in tf.config.optimizer.get_experimental_options().items():
        if name in switches:
            setattr(rewrite, name, rewrite.ON if value else rewrite.OFF)
        elif name == "disable_meta_optimizer":
            rewrite.disable_meta_optimizer = value
