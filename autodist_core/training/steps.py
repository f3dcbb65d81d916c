"""One function over all replicas: captured for each kind of batch, added to the session, and run.

In: batches, as flat arrays with their types. Out: the function's results for the whole batch. `Steps` captures the
function for the first batch of a kind. The captured step is added to the session of the `Training`, and once more to
each later session.

>>> import numpy as np
>>> from autodist_core.capture.example import example_step
>>> from autodist_core.resource_spec import ResourceSpec
>>> from autodist_core.training.settings import Settings
>>> item = example_step()
>>> entries = tuple(Entry(spec, tf.Variable(tf.ones(spec.shape, spec.dtype))) for spec in item.variables)
>>> class Ones(Batch):
...     arrays, specs = (np.ones((5, 3), "float32"),), (tf.TensorSpec((5, 3)),)
...     whole, total, signature = (False,), 5, "ones"
>>> training = Training(Settings(ResourceSpec.local(cpus=2), "PS"))
>>> train = Steps(lambda batch, specs: Captured(item, tuple, entries, SourceLines(), ()), training)
>>> _, (loss, norm) = train.run(Ones())
>>> round(float(loss), 1)
9.0
>>> training.close()
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import tensorflow as tf

from autodist_core.capture.source_lines import SourceLines
from autodist_core.errors import REFUSED, AutodistError, CaptureError, amount
from autodist_core.kernel import Placement
from autodist_core.log import log, stage
from autodist_core.runtime.composites import is_composite
from autodist_core.runtime.protocol import SessionStep
from autodist_core.step.graph_item import GraphItem
from autodist_core.training.announcing import announcement, too_large
from autodist_core.training.entries import Entry, has_value
from autodist_core.training.state import TrainingState
from autodist_core.training.training import Training


@dataclass(frozen=True)
class Captured:
    """A captured function. Each front has a class with more. The module has an example."""

    item: GraphItem
    rebuild: Callable[[Sequence[Any]], Any]
    """Packs output tensors into the structure that the function returns."""
    entries: tuple[Entry, ...]
    """The variables that the function touches."""
    lines: SourceLines
    """The lines of the user's program that made the function's operations."""
    fixing: tuple[tuple[str, str], ...]
    """What cannot run on a part of a batch, in words; and what to do instead."""


class Batch(Protocol):
    """The arrays of one call."""

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays, in the order of the captured function's inputs."""

    @property
    def specs(self) -> tuple[Any, ...]:
        """The types and shapes of the tensors. A ragged or sparse tensor has several arrays."""

    @property
    def whole(self) -> tuple[bool, ...]:
        """For each tensor, whether every replica gets all of it. Its first axis is then none of examples."""

    @property
    def total(self) -> int:
        """The number of examples."""

    @property
    def signature(self) -> Hashable:
        """Equal for batches that one captured step can take, apart from the sizes of their axes."""


C = TypeVar("C", bound=Captured)
B = TypeVar("B", bound=Batch)


@dataclass
class _Alternative(Generic[C]):
    """The function, captured for batches of some shapes."""

    specs: tuple[Any, ...]
    captured: C
    usual: int | None
    added: tuple[TrainingState, SessionStep] | None = None
    """The session's step, and the state to which it belongs."""


class Steps(Generic[B, C]):
    """The captured steps of one function, and the session's steps made of them."""

    def __init__(
        self, trace: Callable[[B, Sequence[Any]], C], training: Training,
        admit: Callable[[TrainingState, GraphItem], GraphItem] = lambda _, item: item,
        added: Callable[[C], object] = lambda _: None,
        name: str = "",
    ) -> None:
        self._trace = trace
        self._training = training
        self._admit = admit
        """May refuse a captured step in a session, or change what of it is an update."""
        self._added = added
        """Is called for each captured step that is kept."""
        self._name = name
        """The name of the function in what is said of it; empty where a training has one training step only."""
        self._alone = training.settings.replicas == 1
        """Whether there is one replica. Its slice is then the batch."""
        self._known: dict[Hashable, list[_Alternative[C]]] = {}
        self._ready: tuple[Hashable, tuple[Any, ...], C] | None = None
        """What `capture` has kept for the first batch, with the signature and the shapes for which it was captured."""
        self.captured: C | None = None
        """The first captured step that was not refused."""
        self._mentioned = False
        self._announced: Placement | None = None
        """The placement of which it was said what the function does."""

    def run(self, batch: B, same_size: bool = False) -> tuple[C, list[Any]]:
        """Run the function on one batch; return the captured function, and its outputs for the whole batch.

        `same_size` says that other batches have as many examples. The first such size gets a graph of its own. In that
        graph TensorFlow computes the values that depend on the size in advance, and rounds so.
        """
        found = self._alternative(batch) or self._add(batch, same_size)
        with found.captured.lines.told():
            state, step = self._session_step(found, batch)
            state.before_step()
            try:
                outputs = step(batch.arrays, batch.total)
            finally:
                state.end_step()
            state.after_step()
            if state.session.placement is not self._announced:
                self._announce(state, step, batch)
        return found.captured, outputs

    def say_again(self) -> None:
        """Say after the next step what the function does, in case its batches are others now."""
        self._announced = None

    def prepare(self, batch: B, same_size: bool = False) -> C:
        """The function, captured for batches like this one and added to the session; nothing runs."""
        found = self._alternative(batch) or self._add(batch, same_size)
        with found.captured.lines.told():
            self._session_step(found, batch)
        return found.captured

    def capture(self, batch: B, keep: bool = False, same_size: bool = False) -> C:
        """The function, captured for batches like this one; nothing is added or run.

        With `keep`, the first batch that runs is not captured once more, if it is like this one. `same_size` says that
        other batches have as many examples.
        """
        specs = self._usual_specs(batch, same_size)
        captured = self._traced(batch, specs)
        if keep:
            self._ready = batch.signature, specs, captured
        return captured

    def found(self, batch: B) -> C | None:
        """The function as it was captured for batches like this one, if it was."""
        alternative = self._alternative(batch)
        return None if alternative is None else alternative.captured

    def _traced(self, batch: B, specs: Sequence[Any]) -> C:
        ready, self._ready = self._ready, None
        if ready is not None and ready[:2] == (batch.signature, specs):
            return ready[2]
        with stage("the capture of a step", "tracing a step of the model, once for each kind of batch"):
            captured = self._trace(batch, specs)
        held = sum(entry.spec.byte_size for entry in captured.entries if has_value(entry.tf_variable))
        captured.item.found.update(examples=batch.total, held=held)
        # One replica computes a batch of one example: such a batch is not divided.
        if captured.fixing and not self._alone and batch.total > 1:
            opened = tuple(map(_open_empty, specs))
            if opened != specs:
                # An axis without entries gives products of no size, which look fixed: 0 = 7 * 0.
                return self._traced(batch, opened)
            self._training.check()  # a front may know the reason by the name of a layer
            self._trace(batch, batch.specs)  # what does not fit on one device either is refused in its words
            (what, instead), count = captured.fixing[0], self._training.settings.replicas
            raise CaptureError(f"{REFUSED}{what}, and each of {count} replicas gets a part of every batch. {instead}")
        self._training.measure_once(captured.item, captured.entries, batch.arrays, batch.total)
        return captured

    def _usual_specs(self, batch: B, same_size: bool, known: tuple[Any, ...] | None = None) -> tuple[Any, ...]:
        return tuple(batch.specs) if same_size and self._alone else self._specs_for(batch, known)

    def _specs_for(self, batch: B, known: tuple[Any, ...] | None = None) -> tuple[Any, ...]:
        """The batch's specs with a dynamic batch axis. Axes in which the batch differs from `known` are dynamic too."""
        seen = known or batch.specs
        return tuple(_dynamic(spec, *each) for spec, *each in zip(batch.specs, seen, batch.whole, strict=True))

    def _alternative(self, batch: B) -> _Alternative[C] | None:
        for each in self._known.get(batch.signature, ()):
            if all(_takes(spec, seen) for spec, seen in zip(each.specs, batch.specs, strict=True)):
                return each
        return None

    def _add(self, batch: B, same_size: bool) -> _Alternative[C]:
        """Capture the function for this batch. Axes in which the batch differs from earlier batches become dynamic.

        If all batches have the same size, the step of a single replica is captured with the sizes of one device.
        Sizes that the function does not accept are refused here: a graph with dynamic axes would fail at its first run.
        A function that computes with a size in Python is captured for each size, as by a `tf.function`.
        """
        alternatives = self._known.get(batch.signature, [])
        known = alternatives[-1].specs if alternatives else None
        same_size = same_size and not (self._alone and known)
        specs = self._usual_specs(batch, same_size, known)
        usual = batch.total if same_size else None
        if known and specs != (exact := self._specs_for(batch)):
            found = _Alternative(exact, self._traced(batch, exact), usual)
            try:
                found = _Alternative(specs, self._traced(batch, specs), usual)
            except AutodistError:
                raise
            except Exception:
                log.debug("the sizes %s are numbers in Python: the function is traced for each", exact, exc_info=True)
        else:
            found = _Alternative(specs, self._traced(batch, specs), usual)
        captured = found.captured
        self._training.try_once(captured.item, captured.entries, batch.arrays, batch.total)
        # The alternative is stored only after this call: the session may refuse the step.
        with found.captured.lines.told():
            self._session_step(found, batch)
        if self.captured is None:
            self.captured = found.captured
        self._known.setdefault(batch.signature, []).append(found)
        self._added(found.captured)
        return found

    def _session_step(self, found: _Alternative[C], batch: B) -> tuple[TrainingState, SessionStep]:
        if found.added is None or found.added[0] is not self._training.state:
            item, admitted = None, found.captured.item
            while item is not admitted:
                # The session of a step with another update may be another one.
                item = admitted
                admitted = self._admit(state := self._training.open(item), item)
            own = {entry.spec.name: entry.handle for entry in found.captured.entries}
            step = state.session.add(item, found.usual, own)
            if not self._mentioned:
                self._warn(state, step, batch)
            # From here on, variables may get the values for which they wait.
            state.watch(found.captured.entries)
            found.added = state, step
        return found.added

    def _announce(self, state: TrainingState, step: SessionStep, batch: B) -> None:
        # Another placement, as after the loss of a machine, may divide a batch in another way.
        self._announced = state.session.placement
        if step.item.gradients:
            line = announcement(state.session, step, batch.arrays, batch.total)
            self._training.say_once(f"{self._name}: {line}" if self._name else line)

    def _warn(self, state: TrainingState, step: SessionStep, batch: B) -> None:
        total, replicas = batch.total, len(state.session.placement.replicas)
        if total < replicas and any(each.has_rows for each in step.item.inputs):
            log.warning(
                "A batch of %s leaves %d of %d replicas idle; larger batches keep them all busy.",
                amount(total, "example"), replicas - total, replicas,
            )
        if step.item.gradients and (text := too_large(state.session, step, batch.arrays, total)):
            log.warning("%s", text)
        # The first batch decides: a small last batch of an epoch needs no warning.
        self._mentioned = True


def _takes(spec: Any, seen: Any) -> bool:
    if is_composite(spec):
        return bool(seen.is_subtype_of(spec))
    return bool(spec.shape.is_compatible_with(seen.shape))


def _open_empty(spec: Any) -> Any:
    """The spec with a dynamic axis in place of each axis without entries."""
    if is_composite(spec) or not spec.shape.rank:
        return spec
    return tf.TensorSpec([size or None for size in spec.shape.as_list()], spec.dtype)


def _dynamic(spec: Any, seen: Any, whole: bool) -> Any:
    if is_composite(spec):
        return spec.most_specific_common_supertype([seen])
    if not spec.shape.rank:
        return spec
    sizes = zip(spec.shape.as_list(), seen.shape.as_list(), strict=True)
    axes = [size if size == other and (axis or whole) else None for axis, (size, other) in enumerate(sizes)]
    return tf.TensorSpec(axes, spec.dtype)
