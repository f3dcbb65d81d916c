"""One captured function on the replicas of one machine, which wait for each other.

In: the tensors of a batch. Out: the function's results for the whole batch, as tensors. The graph of the step cuts the
batch into the replicas' slices itself. So a step is one call of a function, and no tensor becomes an array.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.kernel import DistributedGraph
from autodist_core.runtime.batch_slices import Each
from autodist_core.runtime.composites import Component
from autodist_core.runtime.replicated import ReplicatedStep
from autodist_core.step.grouping import by_key

_HOST = "/device:CPU:0"


class LocalStep(ReplicatedStep):
    """One captured function in a session of one machine.

    >>> from autodist_core.runtime.example import example_batch, example_session
    >>> from autodist_core.strategy import PS
    >>> session, train = example_session(PS())
    >>> [type(output).__name__ for output in train([example_batch(5)], 5)]
    ['EagerTensor', 'EagerTensor']
    >>> session.close()
    """

    def _run(self, call: Callable[..., Any], arrays: Sequence[Any], total: int, slot: Any) -> list[Any]:
        tensors = [tensor for array in arrays for tensor in _tensors(array, len(self._bounds))]
        return list(call(*tensors) if total == self._usual else call(*tensors, np.array(self._ends, np.int64)))

    @property
    def _ends(self) -> list[int]:
        """Where the first slice begins, and where each slice ends."""
        return [self._bounds[0][0], *(stop for _, stop in self._bounds)]

    def _import(self, graph: DistributedGraph, name: str, arrays: Sequence[Any], usual: bool) -> Callable[..., Any]:
        signature = [spec for index, array in enumerate(arrays) for spec in self._specs(index, array, usual)]
        if not usual:
            signature.append(tf.TensorSpec([len(self._bounds) + 1], tf.int64))
        fixed = self._ends if usual else None
        # What must be known of an array to make it again of its tensors: an `Each`, a component of which rows, or None.
        layout = [array if isinstance(array, Each | Component) else None for array in arrays]

        def feeds(tensors: Sequence[Any]) -> Mapping[str, Any]:
            with tf.device(_HOST):
                ends = fixed or [tensors[-1][place] for place in range(len(graph.feeds) + 1)]
                return self._feeds(graph, _arrays(layout, tensors, len(graph.feeds)), ends)

        call: Callable[..., Any] = self._session.function(graph, name, signature, feeds, self._doing, self._part)
        layout.clear()  # TensorFlow keeps the function that was traced, and it must not keep the batch
        return call

    def _specs(self, index: int, array: Any, usual: bool) -> list[tf.TensorSpec]:
        tensor = self.item.inputs[index]
        if isinstance(array, Each):
            return [tf.TensorSpec(tensor.shape, tensor.dtype)] * len(self._bounds)
        size = self._usual if usual and tensor.has_rows and not tensor.part else None
        shape = tensor.shape if size is None or tensor.shape is None else (size, *tensor.shape[1:])
        return [tf.TensorSpec(shape, tensor.dtype)]

    def _feeds(self, graph: DistributedGraph, arrays: Sequence[Any], ends: Sequence[Any]) -> dict[str, Any]:
        """What each placeholder of the graph is."""
        found: dict[str, Any] = {}
        alone = len(graph.feeds) == 1
        for replica, (names, (start, stop)) in enumerate(zip(graph.feeds, pairwise(ends), strict=True)):
            rows = [
                arrays[index] if alone else self._slicer.part(index, arrays[index], replica, start, stop)
                for index in graph.inputs
            ]
            found |= zip(names, (_tensors(array, 1)[0] for array in rows), strict=True)
        if graph.counts:
            sizes = [tf.cast(stop - start, tf.float64) for start, stop in pairwise(ends)]
            found |= zip(graph.counts, [*sizes, tf.cast(ends[-1] - ends[0], tf.float64)], strict=True)
        return found


def _tensors(array: Any, active: int) -> Sequence[Any]:
    """The arguments that an array of a batch is."""
    if isinstance(array, Each):
        return array.values[:active]
    return [array.rows.components[array.index] if isinstance(array, Component) else array]


def _arrays(layout: Sequence[Any], tensors: Sequence[Any], active: int) -> list[Any]:
    """The arrays of a batch, made of the function's first arguments."""
    remaining = iter(tensors)
    found = [
        replace(each, values=tuple(islice(remaining, active))) if isinstance(each, Each) else next(remaining)
        for each in layout
    ]
    parts = by_key((each.rows, made) for each, made in zip(layout, found, strict=True) if isinstance(each, Component))
    for place, each in enumerate(layout):
        if isinstance(each, Component):
            found[place] = Component(replace(each.rows, components=tuple(parts[each.rows])), each.index)
    return found
