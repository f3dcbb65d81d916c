"""Decide how the data of Keras's loops gets to the replicas, and let a loop iterate over what travels that way.

In: the epoch iterators that Keras makes in `fit`, for the validations in it, in `evaluate` and in `predict`. Out: the
same iterators over the numbers of rows (`kept_data.py`), or over batches that each machine makes
(`travelling_data.py`), or as they were, if the batches are fed; and the way in words, for the plan and the log.

Arrays are kept if they are dense, if they are no larger than `kept_limit()`, and if that sends fewer bytes over the
chief's link than to feed each batch. A dataset runs on each machine if it can, and if the arrays in it pass the same
two tests. What was sent before in the same call counts: a callback that evaluates on the same arrays after each epoch,
say. What the machines have already is not sent again. On one machine nothing is kept.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import keras
import tensorflow as tf

from autodist_core.log import log
from autodist_core.resource_spec import ResourceSpec
from autodist_core.runtime import KEPT_VARIABLE, SMALL_GRAPH, DataPipeline, is_by_file, kept_limit, slices, travelling
from autodist_core.step.graph_item import format_bytes
from autodist_keras import checks
from autodist_keras.capture.hooks import hook
from autodist_keras.seams import EPOCH_ITERATOR
from autodist_keras.training.kept_data import arrays_of, is_kept_kind, over_rows, pairs_of, size_of
from autodist_keras.training.met_data import MetData
from autodist_keras.training.travelling_data import PipelineBatches

FIT, VALIDATION, EVALUATE, PREDICT = WHATS = ("fit", "validation", "evaluate", "predict")


@dataclass(frozen=True)
class Way:
    """How the data of a loop gets to the replicas.

    >>> Way("fed each step").once
    False
    """

    text: str = ""
    """The way in words; empty on one machine."""
    once: bool = False
    """Whether the machines keep the arrays, or run the dataset."""


def foretold(spec: ResourceSpec, data: Any = None) -> str:
    """What a `fit` on these machines does with its data, as far as it is known before; empty on one machine.

    Of a small dataset it is known, unless a machine cannot make the first batch.

    >>> spec = ResourceSpec({"nodes": [{"address": "10.0.0.1", "chief": True}, {"address": "10.0.0.2"}]})
    >>> foretold(spec, tf.data.Dataset.range(4).batch(2)).split(" (")[0]
    'each machine runs its tf.data pipeline'
    >>> foretold(spec).split("; ")[2]
    'other data, fed each step'
    """
    if not share_of_others(spec):
        return ""
    rule = (
        f"arrays of at most {format_bytes(kept_limit())}, sent once to each machine if a fit sends more otherwise; "
        "datasets, run by each machine if they can be; other data, fed each step"
    )
    if not isinstance(data, tf.data.Dataset):
        return rule
    try:
        pipeline, _ = travelling(data, rows=_rows_by_file(spec, data))
    except ValueError as error:
        return f"fed each step: {error}"
    size = len(pipeline.graph)
    if refused := _too_large(size, FIT, inf, False):
        return refused
    if size > SMALL_GRAPH:
        # The number of epochs decides.
        return rule
    return f"{_runs(pipeline)}. If a machine cannot make the first batch, each batch is fed"


def share_of_others(spec: ResourceSpec) -> float:
    """The part of each batch that the chief sends to other machines.

    >>> share_of_others(ResourceSpec({"nodes": [{"address": "10.0.0.1", "chief": True}, {"address": "10.0.0.2"}]}))
    0.5
    """
    devices = [device for _, device in spec.replica_devices]
    return sum(device.address != spec.chief.address for device in devices) / max(1, len(devices))


def rows_of_machines(spec: ResourceSpec, total: int) -> list[int]:
    """How many examples of a batch of so many each machine with replicas has.

    >>> nodes = [{"address": "10.0.0.1", "chief": True, "cpus": [0, 1]}, {"address": "10.0.0.2"}]
    >>> rows_of_machines(ResourceSpec({"nodes": nodes}), 7)
    [5, 2]
    """
    devices = [device.address for _, device in spec.replica_devices]
    rows = dict.fromkeys(devices, 0)
    for address, (start, stop) in zip(devices, slices(total, len(devices)), strict=True):
        rows[address] += stop - start
    return list(rows.values())


@dataclass(eq=False)
class _Loop:
    """A call of one of Keras's loops."""

    name: str
    arguments: Mapping[str, Any]
    begun: bool = False
    """Whether its own data was decided on."""

    def passes(self, what: str) -> int:
        """How often the data is gone through."""
        if what in (EVALUATE, PREDICT):
            return 1
        epochs = max(0, self.arguments.get("epochs", 1) - self.arguments.get("initial_epoch", 0))
        if what == FIT:
            return epochs
        often = self.arguments.get("validation_freq", 1)
        return len(often) if isinstance(often, list | tuple | set) else epochs // max(1, int(often))


class DataWays:
    """Decides for the loops of one model. `say` is told each way over several machines.

    A `fit` that goes on from a saved position in the data must take its batches as they were taken then. `by_rows` says
    whether that was by the numbers of rows; None where nothing was saved.

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> ways = DataWays(model, lambda: ResourceSpec.local(cpus=2), print)
    >>> with ways.call(), ways.loop("fit", ([[1.0]],), {"epochs": 2}) as (args, kwargs):
    ...     args, kwargs
    (([[1.0]],), {'epochs': 2})
    >>> list(ways.notes)
    []
    """

    def __init__(
        self, model: Any, spec: Callable[[], ResourceSpec], say: Callable[[str], None],
        by_rows: Callable[[], bool | None] = lambda: None,
    ) -> None:
        self._model, self._spec, self._say, self._by_rows = model, spec, say, by_rows
        self.ways: dict[str, Way] = {}
        """The ways of the last `fit`, its validation data, the last `evaluate` and the last `predict`."""
        self._loops: list[_Loop] = []
        """The loops that run, the innermost last."""
        self._met = MetData()

    @property
    def notes(self) -> Iterator[str]:
        """The lines of the plan on the ways over several machines."""
        told = ((what, self.ways.get(what, Way()).text) for what in WHATS)
        return (f"{_data(what, 'last')}: {text}" for what, text in told if text)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Follow the epoch iterators that Keras's loops make in this block, for whose length machines keep data."""
        own = self._model._maybe_symbolic_build

        def build(iterator: Any = None, data_batch: Any = None) -> None:
            own(iterator=iterator, data_batch=data_batch)
            if iterator is not None:
                self._made(iterator)

        try:
            with hook(self._model, "_maybe_symbolic_build", build):
                yield
        finally:
            self._met = MetData()

    @contextmanager
    def loop(self, name: str | None, args: Any, kwargs: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Let this method of Keras run in the block. The value is what it is called with."""
        try:
            arguments = inspect.signature(getattr(keras.Model, str(name))).bind(None, *args, **kwargs).arguments
        except (AttributeError, TypeError):
            # A method of the user's own may have other parameters.
            arguments = {}
        if name not in WHATS or not arguments:
            yield args, kwargs
            return
        loop = _Loop(name, arguments)
        self.ways.pop(name, None)
        if name == FIT:
            self.ways.pop(VALIDATION, None)
        self._loops.append(loop)
        try:
            # `predict` shows nobody its epoch iterator. A `predict` of the user's own expects what the user passes.
            shown = name != PREDICT or not share_of_others(self._spec()) or checks.is_own(self._model, name)
            yield (args, kwargs) if shown else ((), self._predicted(loop))
        finally:
            self._loops.remove(loop)

    def _predicted(self, loop: _Loop) -> dict[str, Any]:
        """The arguments of `predict`, with an adapter of Keras's in place of the data."""
        given = {name: value for name, value in loop.arguments.items() if name != "self"}
        iterator = EPOCH_ITERATOR.get()(
            x=given["x"], batch_size=given.get("batch_size"), steps_per_epoch=given.get("steps"), shuffle=False,
            distribute_strategy=self._model.distribute_strategy, steps_per_execution=self._model.steps_per_execution,
        )
        self._decide(iterator, loop, PREDICT)
        adapter = copy.copy(iterator.data_adapter)
        adapter.get_tf_dataset = lambda: iterator._distributed_dataset
        return {**given, "x": adapter}

    def has_arrays_only(self) -> bool:
        """Whether all data of the present call is arrays: its pipelines run nothing of the user's."""
        return {type(each.data_adapter).__name__ for each in self._met.decided} == {"ArrayDataAdapter"}

    def _made(self, iterator: Any) -> None:
        """Decide how the data of an epoch iterator of Keras travels."""
        loop = self._loops[-1] if self._loops else None
        fit = next((each for each in reversed(self._loops) if each.name == FIT), None)
        if any(iterator is each for each in self._met.decided):
            return
        # Keras deletes the attribute before the last callbacks run.
        if fit is not None and iterator is vars(self._model).get("_eval_epoch_iterator"):
            self._decide(iterator, fit, VALIDATION)
        elif loop is not None and not loop.begun:
            self._decide(iterator, loop, loop.name)

    def _decide(self, iterator: Any, loop: _Loop, what: str) -> None:
        self._met.decided.append(iterator)
        loop.begun = True
        share = share_of_others(self._spec())
        by_rows = self._by_rows() if what == FIT else None
        if not (share or by_rows):
            return
        if type(iterator.data_adapter).__name__ == "TFDatasetAdapter":
            way = self._let_travel(iterator, loop, what, share)
        else:
            way = self._let_be_kept(iterator, loop, what, share, by_rows)
        if share:
            self._note(what, way)

    def _note(self, what: str, way: Way) -> None:
        self.ways[what] = way
        if way.text:
            self._say(f"{_data(what, 'present')}: {way.text}")

    def _let_travel(self, iterator: Any, loop: _Loop, what: str, share: float) -> Way:
        """The way of a dataset. If it can run on the machines, Keras iterates over batches that do."""
        def fed(reason: str) -> None:
            log.warning("%s is fed each step: %s", _data(what, "present"), reason)
            self.ways[what] = Way(f"fed each step: {reason}")

        if not share:
            return Way()
        given = iterator._distributed_dataset
        rows = _rows_by_file(self._spec(), given) if what == FIT else None
        known = self._met.of([given], rows is not None)
        # The machines may be unable to run a pipeline after all.
        before = None if known.pipeline is None or known.pipeline[0].fed else known.pipeline
        try:
            pipeline, dataset = before or travelling(given, fed, rows)
        except ValueError as error:
            return Way(f"fed each step: {error}")
        pipeline.say = fed
        size = len(pipeline.graph)
        if before is None and (size > SMALL_GRAPH or size > kept_limit()):
            sent = known.sent + share * _sent(iterator, loop.passes(what))
            if refused := _too_large(size, what, sent, bool(known.sent)):
                known.sent = sent
                return Way(refused)
        known.pipeline = pipeline, dataset
        iterator._distributed_dataset = PipelineBatches(dataset, pipeline, kept_limit())
        return Way(_runs(pipeline), True)

    def _let_be_kept(self, iterator: Any, loop: _Loop, what: str, share: float, by_rows: bool | None) -> Way:
        """The way of other data. If it is arrays that are to be kept, Keras iterates over the numbers of rows."""
        adapter, specs = iterator.data_adapter, iterator._distributed_dataset.element_spec
        arrays = arrays_of(adapter)
        if arrays is None:
            kind = type(adapter).__name__.removesuffix("Adapter")
            return Way(f"fed each step: it is Python code that runs in your program ({kind})")
        if not is_kept_kind(arrays, specs):
            return Way("fed each step: it is not in dense arrays of numbers or strings")
        pairs = pairs_of(arrays, specs)
        size, known = sum(size_of(*pair) for pair in pairs), self._met.of([leaf for leaf, _ in pairs])
        if by_rows is False:
            return Way("fed each step: so it was when the state was saved from which it goes on")
        if by_rows is None and (known.kept is None or size > kept_limit()):
            sent = known.sent + share * _sent(iterator, loop.passes(what))
            if refused := _too_large(size, what, sent, bool(known.sent)):
                known.sent = sent
                return Way(refused)
        # Keras's own copy of the arrays is freed with this.
        iterator._distributed_dataset, known.kept = over_rows(adapter, specs, known.kept)
        return Way(f"{format_bytes(size)}, sent once to each machine; each step feeds the numbers of rows", True)


def _data(what: str, which: str) -> str:
    return f"the validation data of the {which} fit" if what == VALIDATION else f"the data of the {which} {what}"


def _rows_by_file(spec: ResourceSpec, dataset: Any) -> Callable[[int], list[int]] | None:
    """How many rows of a batch each machine has, if each is to read its part of the dataset's files."""
    by_file = is_by_file(dataset) and len(rows_of_machines(spec, 0)) > 1
    return partial(rows_of_machines, spec) if by_file else None


def _runs(pipeline: DataPipeline) -> str:
    """The way of a dataset that runs on each machine."""
    size = format_bytes(len(pipeline.graph))
    said = f"each machine runs its tf.data pipeline ({size}, sent once) and takes its rows"
    if pipeline.shares:
        said = (
            f"by file: each machine runs its tf.data pipeline ({size}, sent once) over a part of its own; so the "
            "batches are others than on one device, and a pass ends with the part that ends first"
        )
    if not pipeline.foreseen:
        said += "; this program runs it too, finds sizes and the end, and feeds the replicas of its own machine"
    return said


def _sent(iterator: Any, passes: int) -> float:
    """How many times the whole data so many passes of a loop go through."""
    whole = iterator.data_adapter.num_batches or iterator.num_batches or 1
    return passes * float(iterator.num_batches or whole) / float(whole)


def _too_large(size: int, what: str, sent: float, again: bool) -> str:
    """Why so many bytes should not be sent to each machine; empty if they should."""
    if size > kept_limit():
        most = format_bytes(kept_limit())
        return f"fed each step: it has {format_bytes(size)}, and machines keep {most} at most ({KEPT_VARIABLE})"
    if sent <= 1.0:
        said = f"{what} and earlier loops of its call" if again else what
        fed, whole = format_bytes(round(sent * size)), format_bytes(size)
        # `explain` goes through no number of epochs.
        return "fed each step: your program sends the machines their rows of each batch" + (
            f", {fed} in this {said}; sending them all of the data beforehand would take {whole}" if sent else ""
        )
    return ""
