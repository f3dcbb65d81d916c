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
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.step import naming
from autodist_core.step.graph_item import Variable


def is_combined(variable: Variable) -> bool:
    """Whether the replicas' copies of a variable that compute writes are combined after a step.

    >>> is_combined(Variable("total", (), "float32")), is_combined(Variable("seed", (2,), "uint32", kind="seed"))
    (True, False)
    """
    return variable.kind != "seed"


@dataclass(frozen=True)
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
        for name in sorted(draft.step.written_by_compute):
            variable = draft.step.variables[name]
            if (idle or is_combined(variable)) and len(draft.placement.copies(name)) > 1:
                _combine(draft, variable)


def _combine(draft: Draft, variable: Variable) -> None:
    name, dtype = variable.name, tf.as_dtype(variable.dtype)
    label = f"combine/{naming.safe(name)}"
    replicas = draft.placement.replicas
    mirrors = [draft.placement.mirror(name, replica) for replica in replicas]
    # Between steps, replica 0 has the sum: its copy counts even if replica 0 is idle.
    sources = sorted({0, *draft.active}) if variable.aggregation == "sum" else draft.active
    values = [
        draft.read(f"{label}/{replicas[index].prefix}", name, mirrors[index], draft.end) for index in sources
    ]
    device, stacked = mirrors[0].device, tf.TensorSpec((*draft.spec(name).shape, len(values)), dtype)
    if variable.aggregation == "sum":
        if len(values) == 1:
            return
        total = draft.add_up(f"{label}/sum", values, dtype, device)
        nothing = draft.editor.add("ZerosLike", f"{label}/nothing", [values[0]], device, T=dtype)
        draft.write(f"{label}/write_{replicas[0].prefix}", name, mirrors[0], total, draft.end + 1)
        for index in sources[1:]:
            draft.write(f"{label}/clear_{replicas[index].prefix}", name, mirrors[index], nothing, draft.end + 1)
        return
    extreme = _EXTREMES.get(variable.aggregation)
    combined = values[0]
    is_float = dtype.is_floating or dtype.is_complex
    by_mean = variable.aggregation == "mean" or (variable.aggregation == "none" and is_float)
    if extreme is not None and len(values) > 1:
        together = {draft.stack(f"{label}/together", values, dtype, device): stacked}
        combined = draft.editor.trace(f"{label}/{variable.aggregation}", extreme, together, device)[0]
    elif by_mean and len(values) > 1:
        weight = dtype.real_dtype
        together = {draft.stack(f"{label}/together", values, dtype, device): stacked}
        first = {values[0]: draft.spec(name)}
        shares = {draft.shares(weight): tf.TensorSpec((len(values),), weight)}
        combined = draft.editor.trace(f"{label}/mean", weighted_mean, first | together | shares, device)[0]
    else:
        combined = draft.editor.add("Identity", f"{label}/value", [combined], device, T=dtype)
    for replica, mirror in zip(replicas, mirrors, strict=True):
        draft.write(f"{label}/write_{replica.prefix}", name, mirror, combined, draft.end + 1)


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


_EXTREMES = {"max": largest, "min": smallest}


def weighted_mean(first: tf.Tensor, values: tf.Tensor, shares: tf.Tensor) -> tf.Tensor:
    """Return the mean along the last axis of values, weighted by shares; exact if all values are equal to the first.

    >>> weighted_mean(tf.constant(1.0), tf.constant([1.0, 4.0]), tf.constant([0.75, 0.25])).numpy().item()
    1.75
    """
    further = (values - tf.expand_dims(first, -1)) * tf.cast(shares, values.dtype)
    return first + tf.reduce_sum(further, -1)
