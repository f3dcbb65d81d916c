"""Data of a `fit` that travels once: whole arrays, which every machine keeps until the end of the `fit`, and datasets.

In: the epoch iterators of Keras's `fit`. Out: the same iterators over row numbers. Keras's own adapter makes the order
of the rows: one over the numbers of the rows, in place of the arrays, makes the same order. Each batch is then rows of
`KeptArrays`, which the session sends to the machines with the first batch (`autodist_core/runtime/kept_arrays.py`).

Arrays are kept if they are dense, if they are no larger than `limit()`, and if that sends fewer bytes over the chief's
link than to feed each batch. A dataset runs on each machine (`travelling_data.py`) if it can, and if the arrays in it
pass the same two tests. On one machine nothing is kept.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from autodist_core.log import log
from autodist_core.resource_spec import ResourceSpec
from autodist_core.runtime import KeptArrays, travelling
from autodist_core.step.graph_item import format_bytes
from autodist_keras.capture.hooks import hook
from autodist_keras.training.batches import Batch, BatchIterator
from autodist_keras.training.travelling_data import PipelineBatches

VARIABLE = "AUTODIST_KEPT_BYTES"
KEPT_BYTES = 1 << 30
"""The most bytes of arrays that each machine keeps, unless the environment variable says otherwise."""
_SMALL_BYTES = 1 << 20
"""The graph of a dataset with fewer bytes is sent without asking what the steps would send."""


def limit(environment: Mapping[str, str] = os.environ) -> int:
    """The most bytes of arrays that each machine keeps.

    >>> limit({}), limit({"AUTODIST_KEPT_BYTES": "0"})
    (1073741824, 0)
    >>> limit({"AUTODIST_KEPT_BYTES": "2 GB"})
    Traceback (most recent call last):
    ValueError: AUTODIST_KEPT_BYTES='2 GB' is no number of bytes, such as 2000000000, or 0 to feed every batch.
    """
    text = environment.get(VARIABLE, str(KEPT_BYTES))
    if not text.strip().isdecimal():
        raise ValueError(f"{VARIABLE}={text!r} is no number of bytes, such as 2000000000, or 0 to feed every batch.")
    return int(text)


@dataclass(frozen=True)
class Way:
    """How the data of a `fit` gets to the replicas.

    >>> Way("fed each step").kept
    False
    """

    text: str = ""
    """The way in words; empty on one machine."""
    kept: bool = False
    """Whether the machines keep the arrays."""


def rule(spec: ResourceSpec) -> str:
    """What a `fit` on these machines does with its data, as far as it is known before; empty on one machine.

    >>> rule(ResourceSpec({"nodes": [{"address": "10.0.0.1", "chief": True}, {"address": "10.0.0.2"}]})).split("; ")[1:]
    ['datasets, run by each machine if they can be', 'other data, fed each step']
    >>> rule(ResourceSpec.local(cpus=2))
    ''
    """
    if not share_of_others(spec):
        return ""
    return (
        f"arrays of at most {format_bytes(limit())}, sent once to each machine if a fit sends more otherwise; "
        "datasets, run by each machine if they can be; other data, fed each step"
    )


def share_of_others(spec: ResourceSpec) -> float:
    """The part of each batch that the chief sends to other machines.

    >>> share_of_others(ResourceSpec({"nodes": [{"address": "10.0.0.1", "chief": True}, {"address": "10.0.0.2"}]}))
    0.5
    """
    devices = [device for _, device in spec.replica_devices]
    return sum(device.address != spec.chief.address for device in devices) / max(1, len(devices))


class RowsOfArrays:
    """What Keras iterates over, once for each epoch: batches that are rows of kept arrays.

    >>> rows = tf.data.Dataset.from_tensor_slices([2, 0, 1]).batch(2)
    >>> data = RowsOfArrays(rows, KeptArrays((np.array([1.0, 2.0, 3.0]),)), tf.TensorSpec((None,), tf.float64))
    >>> [np.asarray(batch.arrays[0]).tolist() for batch in data]
    [[3.0, 1.0], [2.0]]
    """

    def __init__(self, rows: Any, kept: KeptArrays, element_spec: Any) -> None:
        self._rows, self._kept, self.element_spec = rows, kept, element_spec
        self._structure = keras.tree.map_structure(
            lambda spec: spec if isinstance(spec, tf.TensorSpec) else None, element_spec
        )
        self._types = [(array.shape[1:], tf.as_dtype(array.dtype)) for array in kept.arrays]

    def __iter__(self) -> KeptIterator:
        return KeptIterator(iter(self._rows), self.element_spec, self.batch)

    def batch(self, rows: Any) -> Batch:
        """The batch of rows with these numbers."""
        numbers = np.asarray(rows)
        specs = tuple(tf.TensorSpec((len(numbers), *shape), dtype) for shape, dtype in self._types)
        return Batch(self._structure, self._kept.rows(numbers), specs, len(numbers))


class KeptIterator(BatchIterator):
    """An iterator of batches that are rows of kept arrays. `RowsOfArrays` has an example."""

    def __init__(self, inner: Any, element_spec: Any, batch: Callable[[Any], Batch]) -> None:
        super().__init__(inner, element_spec)
        self._batch = batch

    def next_of(self, fetch: Callable[[], Any]) -> Batch:
        """The batch of the next row numbers."""
        return self._batch(fetch())


class _Fit:
    """One call of `fit`."""

    def __init__(
        self, model: Any, spec: ResourceSpec, arguments: Mapping[str, Any], by_rows: Callable[[], bool | None],
        note: Callable[[Way], None],
    ) -> None:
        self._model = model
        self._arguments = arguments
        self._by_rows = by_rows
        self._note = note
        self.share = share_of_others(spec)
        self.way = Way()
        self._decided: list[Any] = []
        """The epoch iterators of the training and of its validations."""

    def keep(self, iterator: Any) -> None:
        """Let an epoch iterator of Keras iterate over row numbers, if its arrays are kept."""
        trains = not self._decided
        # Callbacks may evaluate on other data. Keras deletes the attribute before the last of them run.
        validates = iterator is vars(self._model).get("_eval_epoch_iterator")
        if any(iterator is each for each in self._decided) or not (trains or validates):
            return
        self._decided.append(iterator)
        if not (self.share or (trains and self._by_rows())):
            return
        if isinstance(self._given(trains), tf.data.Dataset):
            way = self._let_travel(iterator, trains)
        else:
            way = self._way_of(iterator, trains)
        self.way = way if trains else self.way
        if way.kept:
            # Keras's own copy of the arrays is freed with this.
            specs = iterator._distributed_dataset.element_spec
            iterator._distributed_dataset = _over_rows(iterator.data_adapter, specs)

    @property
    def _epochs(self) -> int:
        epochs, first = self._arguments.get("epochs", 1), self._arguments.get("initial_epoch", 0)
        return max(0, epochs - first)

    @property
    def _validations(self) -> int:
        often = self._arguments.get("validation_freq", 1)
        return len(often) if isinstance(often, list | tuple | set) else self._epochs // max(1, int(often))

    def _given(self, trains: bool) -> Any:
        """What the user has passed as the data."""
        return self._arguments.get("x" if trains else "validation_data")

    def _let_travel(self, iterator: Any, trains: bool) -> Way:
        """The way of a dataset. If it can run on the machines, Keras iterates over batches that do."""
        def fed(reason: str) -> None:
            log.warning("the %sdata is fed each step: %s", "" if trains else "validation ", reason)
            if trains:
                self.way = Way(f"fed each step: {reason}")
                self._note(self.way)

        if not self.share:
            return Way()
        try:
            pipeline, dataset = travelling(iterator._distributed_dataset, fed)
        except ValueError as error:
            return Way(f"fed each step: {error}")
        size = len(pipeline.graph)
        if refused := self._too_large(size, iterator, trains) if size > _SMALL_BYTES or size > limit() else "":
            return Way(refused)
        iterator._distributed_dataset = PipelineBatches(dataset, pipeline, limit())
        said = f"each machine runs its tf.data pipeline ({format_bytes(size)}, sent once) and takes its rows"
        if not pipeline.foreseen:
            said += "; this program runs it too, finds sizes and the end, and feeds the replicas of its own machine"
        return Way(said)

    def _too_large(self, size: int, iterator: Any, trains: bool) -> str:
        """Why so many bytes should not be sent to each machine; empty if they should."""
        if size > limit():
            most = format_bytes(limit())
            return f"fed each step: it has {format_bytes(size)}, and machines keep {most} at most ({VARIABLE})"
        epochs = self._epochs if trains else self._validations
        whole = iterator.data_adapter.num_batches or iterator.num_batches or 1
        sent = self.share * epochs * (iterator.num_batches or whole) / whole
        if sent <= 1.0:
            return f"fed each step: the steps of this fit send {sent:.2g} times its {format_bytes(size)}"
        return ""

    def _way_of(self, iterator: Any, trains: bool) -> Way:
        adapter, specs = iterator.data_adapter, iterator._distributed_dataset.element_spec
        arrays = _arrays_of(adapter)
        if not _are_dense(arrays, specs):
            return Way("fed each step: it is not in dense arrays of numbers")
        size = sum(_size(leaf, spec) for leaf, spec in _pairs(arrays, specs))
        once = Way(f"{format_bytes(size)}, sent once to each machine; each step feeds the numbers of rows", True)
        by_rows = self._by_rows() if trains else None
        if by_rows is not None:
            return once if by_rows else Way("fed each step: so it was when the state was saved from which it goes on")
        refused = self._too_large(size, iterator, trains)
        return Way(refused) if refused else once


@contextmanager
def kept_data(
    model: Any, spec: ResourceSpec, args: tuple[Any, ...], kwargs: dict[str, Any], note: Callable[[Way], None],
    by_rows: Callable[[], bool | None] = lambda: None,
) -> Iterator[None]:
    """Let Keras's `fit` with these arguments run in this block. `note` is told the way of its data over machines.

    A `fit` that goes on from a saved position in the data must take its batches as they were taken then. `by_rows` says
    whether that was by the numbers of rows; None where nothing was saved.

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> with kept_data(model, ResourceSpec.local(cpus=2), (np.ones((4, 3)), np.ones(4)), {}, print):
    ...     pass
    Way(text='', kept=False)
    """
    note(Way())
    try:
        arguments = inspect.signature(keras.Model.fit).bind(None, *args, **kwargs).arguments
    except TypeError:
        # A `fit` of the user's own has other parameters.
        arguments = {}
    if not arguments:
        yield
        return
    fit = _Fit(model, spec, arguments, by_rows, note)
    own = model._maybe_symbolic_build

    def build(iterator: Any = None, data_batch: Any = None) -> None:
        own(iterator=iterator, data_batch=data_batch)
        if iterator is not None:
            fit.keep(iterator)
            if fit.share:
                note(fit.way)

    with hook(model, "_maybe_symbolic_build", build):
        yield


def _over_rows(adapter: Any, element_spec: Any) -> RowsOfArrays:
    """The batches of an adapter of arrays, as rows of copies of these. Later changes by the user count in no epoch."""
    pairs = _pairs(_arrays_of(adapter), element_spec)
    kept = KeptArrays(tuple(np.array(leaf, spec.dtype.as_numpy_dtype) for leaf, spec in pairs))
    rows = copy.copy(adapter)
    rows._inputs = np.arange(len(kept.arrays[0]))
    return RowsOfArrays(rows.get_tf_dataset(), kept, element_spec)


def _arrays_of(adapter: Any) -> Any:
    """The arrays of Keras's adapter of arrays; None for another adapter."""
    return adapter._inputs if type(adapter).__name__ == "ArrayDataAdapter" else None


def _pairs(arrays: Any, specs: Any) -> list[tuple[Any, Any]]:
    """The arrays, and the specs of their rows in a batch."""
    pairs = zip(keras.tree.flatten(arrays), keras.tree.flatten(specs), strict=True)
    return [(leaf, spec) for leaf, spec in pairs if leaf is not None]


def _are_dense(arrays: Any, specs: Any) -> bool:
    if arrays is None or len(keras.tree.flatten(arrays)) != len(keras.tree.flatten(specs)):
        return False
    return all(
        isinstance(leaf, np.ndarray | tf.Tensor) and isinstance(spec, tf.TensorSpec) and spec.shape.rank
        and (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool)
        for leaf, spec in _pairs(arrays, specs)
    )  # fmt: skip


def _size(leaf: Any, spec: Any) -> int:
    return int(np.prod(leaf.shape)) * int(spec.dtype.size)
