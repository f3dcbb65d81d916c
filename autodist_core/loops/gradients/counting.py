"""Count the values that a function of `run()` adds up over the replicas, and that are sums already.

In: the markers of these values, and the variables of all functions. Out: how each such marker counts, and the variables
with what is known of them now. `accumulated` and `summed_again` have the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from autodist_core.capture.gradients import Differentiation, handle_of
from autodist_core.capture.traced import Counted
from autodist_core.loops.gradients.accumulated import find_sums
from autodist_core.loops.gradients.summed_again import summed_again
from autodist_core.loops.gradients.updates import Updates
from autodist_core.loops.variables import Variables
from autodist_core.training import Entry


def counted_sums(
    graph: Any, markers: Sequence[Any], slices: Sequence[tuple[Any, Any]], found: Sequence[Differentiation],
    entries: Sequence[Entry], new: Collection[str], batch: Sequence[Any], updates: Updates, variables: Variables,
    replicas: int,
) -> tuple[dict[str, Counted], list[Entry]]:
    """How the markers count that are not added up over the replicas, by name; and the entries of the variables.

    A variable with the aggregation SUM to which the function adds gradients has one value for all replicas. That is
    said in its entry, if the variable is `new`: no function was captured with another one.

    >>> total = tf.Variable(1.0, name="total")
    >>> graph = tf.function(lambda: tf.identity(total, name="sum")).get_concrete_function().graph
    >>> marker, updates = graph.get_operation_by_name("sum").outputs[0], Updates((), {}, (), frozenset())
    >>> known = Variables()
    >>> counted, _ = counted_sums(
    ...     graph, [marker], (), (), [known.entry(total)], ["total"], (), updates, known, 2
    ... )
    >>> counted["sum"].times
    2
    """
    known, names = variables.accumulated, {id(entry.handle): entry.spec.name for entry in entries}
    outside = {id(placeholder): value for value, placeholder in graph.captures}
    handles = {placeholder.op.name: names[id(value)] for value, placeholder in graph.captures if id(value) in names}
    given = [handle_of(each) for call in found for each in call.gradients]
    known.train(names[id(outside.get(id(handle), handle))] for handle in given)
    sums = find_sums(
        graph, handles, {marker.op.name for call in found for marker in call.markers}, markers,
        {tensor.op.name for tensor in batch}, updates.operations, known, replicas,
        {entry.spec.name for entry in entries if _is_combined_when_written(entry.tf_variable)},
    )
    known.learn(sums.own, sums.summed, sums.multiplied)
    holding = {
        entry.spec.name for entry in entries if entry.spec.aggregation == "sum" and entry.spec.name in new
    } & sums.only_added
    again = summed_again(markers, slices, updates.operations, found, replicas)
    once = {name: how for name, how in sums.counted.items() if name in again or name not in updates.operations}
    return {**again, **once}, [
        variables.holding_gradients(entry) if entry.spec.name in holding else entry for entry in entries
    ]


def _is_combined_when_written(variable: Any) -> bool:
    """Whether tf.distribute adds up what the replicas write to a variable at once, and not when it is read."""
    added_up = variable.aggregation == tf.VariableAggregation.SUM
    return added_up and variable.synchronization != tf.VariableSynchronization.ON_READ
