"""StateCombiner: combine the variables that compute writes on each replica (metrics, statistics, counters).

In: the variables that compute writes, one copy for each replica. Out: reads and writes after everything else of the
step. For the sum of a metric on two replicas::

    replica 0's copy = replica 0's copy + replica 1's copy
    replica 1's copy = 0

A variable that declares an aggregation is combined by it. A sum starts from zero on every replica but the first. A
variable that keeps a maximum or a minimum becomes the maximum or minimum of the replicas' values (of truth values, true
is the maximum). A float without an
aggregation becomes the mean over the active replicas, weighted by their numbers of examples. Any other variable gets
the value of the first active replica. The state of a seed generator is equal on all active replicas. It is sent to the
idle replicas only.

Over several machines, small variables of one type that are combined in one way travel to the first replica in one
message, and what all replicas get travels back in one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import tensorflow as tf

from autodist_core.kernel import packing
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.placement.placement import Replica
from autodist_core.step import naming
from autodist_core.step.graph_item import Variable


def is_combined(variable: Variable) -> bool:
    """Whether the replicas' copies of a variable that compute writes are combined after a step.

    >>> is_combined(Variable("total", (), "float32")), is_combined(Variable("seed", (2,), "uint32", kind="seed"))
    (True, False)
    """
    return variable.kind != "seed"


class StateCombiner(Kernel):
    """Makes one state of the replicas' copies, after all captured nodes have run.

    >>> from autodist_core.kernel.example import example_change
    >>> from autodist_core.strategy import PS
    >>> example_change(PS(), "StateCombiner", "AssignVariableOp")
    'AssignVariableOp: 3 -> 5'
    """

    def apply(self, draft: Draft) -> None:
        """Combine every variable that compute writes."""
        if len(draft.placement.replicas) == 1:
            return
        idle = len(draft.active_replicas) < len(draft.placement.replicas)
        together: dict[tuple[str, str, tuple[str, ...]], list[Variable]] = {}
        for name in sorted(draft.step.written_by_compute):
            variable = draft.step.variables[name]
            if (idle or is_combined(variable)) and len(draft.placement.copies(name)) > 1:
                devices = tuple(draft.placement.mirror(name, replica).device for replica in draft.placement.replicas)
                together.setdefault((variable.dtype, variable.combined, devices), []).append(variable)
        if tuple(draft.active) == (0,):
            # The sum of replica 0 alone is what it has.
            together = {key: group for key, group in together.items() if key[1] != "sum"}
        for (dtype, way, devices), group in together.items():
            are_packed = _is_packed(tf.as_dtype(dtype), devices)
            for bundle in packing.bundles(group, _spec) if are_packed else [[variable] for variable in group]:
                _combine(draft, _Pack(draft, bundle, way))


def _spec(variable: Variable) -> tf.TensorSpec:
    return tf.TensorSpec(variable.shape, tf.as_dtype(variable.dtype))


def _is_packed(dtype: tf.DType, devices: Collection[str]) -> bool:
    """Whether small variables of a type travel together. A GPU has no operations to pack integers."""
    on_cpus = all("/device:CPU:" in device for device in devices)
    return packing.apart(devices) and (dtype.is_floating or (dtype.is_integer and on_cpus))


def _combine(draft: Draft, pack: _Pack) -> None:
    way, dtype, label, replicas = pack.way, pack.dtype, pack.label, draft.placement.replicas
    # Between steps, replica 0 has the sum: its copy counts even if it is idle.
    sources = sorted({0, *draft.active}) if way == "sum" else draft.active
    values, device = [pack.read(replicas[index]) for index in sources], pack.device(replicas[0])
    if way == "sum":
        pack.write(draft.add_up(f"{label}/sum", values, dtype, device), replicas[:1])
        pack.clear([replicas[index] for index in sources[1:]])
        return
    if way == "first" or len(values) == 1:
        combined = draft.editor.add("Identity", f"{label}/value", values[:1], device, T=dtype)
    else:
        combined = joined_entries(draft, f"{label}/{way}", way, values, pack.spec, device)
    pack.write(combined, replicas)


class _Pack:
    """The values of some variables on each replica as one tensor: a message takes its time however short it is.

    One variable alone is its own tensor. Several are put behind each other in a vector on the replica's device.
    """

    def __init__(self, draft: Draft, group: list[Variable], way: str) -> None:
        self._draft, self._names = draft, [variable.name for variable in group]
        self.way, self.dtype = way, tf.as_dtype(group[0].dtype)
        self._shapes = [variable.shape for variable in group]
        place = naming.safe(group[0].name)
        if len(group) == 1:
            self.label, self.spec = f"combine/{place}", draft.spec(group[0].name)
        else:
            self.label = f"combine/packed/{way}/{place}"
            self.spec = tf.TensorSpec((sum(map(math.prod, self._shapes)),), self.dtype)

    def device(self, replica: Replica) -> str:
        """The device that has the replica's copies."""
        return self._draft.placement.mirror(self._names[0], replica).device

    def read(self, replica: Replica) -> str:
        """Return the values of a replica."""
        reads = [self._read(name, replica) for name in self._names]
        return packing.packed(self._draft, f"{self.label}/{replica.prefix}", reads, self.dtype, self.device(replica))

    def write(self, combined: str, replicas: Sequence[Replica]) -> None:
        """Write these values to the copies of the replicas."""
        for replica in replicas:
            here = f"{self.label}/parts_{replica.prefix}"
            parts = packing.unpacked(self._draft, here, combined, self._shapes, self.dtype, self.device(replica))
            for name, part in zip(self._names, parts, strict=True):
                self._write("write", name, replica, part)

    def clear(self, replicas: Sequence[Replica]) -> None:
        """Write zeros to the copies of the replicas, which are made there."""
        for replica in replicas:
            for name in self._names:
                label = f"combine/{naming.safe(name)}/nothing_{replica.prefix}"
                read = self._read(name, replica)
                zeros = self._draft.editor.add("ZerosLike", label, [read], self.device(replica), T=self.dtype)
                self._write("clear", name, replica, zeros)

    def _read(self, name: str, replica: Replica) -> str:
        label = f"combine/{naming.safe(name)}/{replica.prefix}"
        if label not in self._draft.editor:
            self._draft.read(label, name, self._draft.placement.mirror(name, replica), self._draft.end)
        return label

    def _write(self, doing: str, name: str, replica: Replica, value: str) -> None:
        label = f"combine/{naming.safe(name)}/{doing}_{replica.prefix}"
        self._draft.write(label, name, self._draft.placement.mirror(name, replica), value, self._draft.end + 1)


def joined_entries(draft: Draft, label: str, how: str, values: Sequence[str], spec: tf.TensorSpec, device: str) -> str:
    """Return the `mean`, `max` or `min` of the active replicas' values, entry by entry. Each value has this spec.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft, spec = example_draft(PS()), tf.TensorSpec((), tf.float32)
    >>> values = [draft.editor.constant(f"value{index}", 1.0, tf.float32) for index in range(2)]
    >>> [joined_entries(draft, f"joined/{how}", how, values, spec, "") for how in ("max", "mean")]
    ['joined/max/Max', 'joined/mean/add']
    """
    dtype, count = spec.dtype, len(values)
    stacked = spec.shape.concatenate(count) if spec.shape.rank is not None else None
    specs = {draft.stack(f"{label}/together", values, dtype, device): tf.TensorSpec(stacked, dtype)}
    if how == "mean":
        weight = dtype.real_dtype
        specs = {values[0]: spec, **specs, draft.shares(weight): tf.TensorSpec((count,), weight)}
    return draft.editor.trace(label, _JOINED[how], specs, device)[0]


def largest(together: tf.Tensor) -> tf.Tensor:
    """Return the largest of tensors, which are stacked along the last axis; of truth values, whether any is true.

    >>> largest(tf.constant([1, 4, 2])).numpy().item(), largest(tf.constant([True, False])).numpy().item()
    (4, True)
    """
    return tf.reduce_any(together, -1) if together.dtype.is_bool else tf.reduce_max(together, -1)


def smallest(together: tf.Tensor) -> tf.Tensor:
    """Return the smallest of tensors, which are stacked along the last axis; of truth values, whether all are true.

    >>> smallest(tf.constant([1, 4, 2])).numpy().item(), smallest(tf.constant([True, False])).numpy().item()
    (1, False)
    """
    return tf.reduce_all(together, -1) if together.dtype.is_bool else tf.reduce_min(together, -1)


def weighted_mean(first: tf.Tensor, values: tf.Tensor, shares: tf.Tensor) -> tf.Tensor:
    """Return the mean along the last axis of values, weighted by shares; exact if all values are equal to the first.

    >>> weighted_mean(tf.constant(1.0), tf.constant([1.0, 4.0]), tf.constant([0.75, 0.25])).numpy().item()
    1.75
    """
    return first + tf.reduce_sum((values - tf.expand_dims(first, -1)) * tf.cast(shares, values.dtype), -1)


_JOINED: Mapping[str, Callable[..., tf.Tensor]] = {"mean": weighted_mean, "max": largest, "min": smallest}
