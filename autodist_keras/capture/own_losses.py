"""How the losses count that a training step of the user's own differentiates.

In: a trace, and afterwards the states of what the step differentiates (see `autodist_core.capture.batch_axis`). Out:
which of them are added up, with which the step is captured. Marked functions are decided alike, by the same functions::

    tf.reduce_mean(losses)                  a mean: its gradients count by the share
    losses, tf.reduce_sum(losses)           sums over the examples: their gradients are added up
    tf.reduce_sum(losses) + penalty         two terms, of which each counts by itself

Each tape begins with a seed for each term. If all losses are means, the seeds change nothing. A loss that goes through
`optimizer.scale_loss` is counted there (see `losses.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from autodist_core.capture import gradients, reached_from, sources
from autodist_core.capture.batch_axis import SAME, State
from autodist_keras.capture.mixing import STEPS_LOSS, Asked, numbers_behind


@contextmanager
def recorded_in(model: Any, step: Any, trace: Any) -> Iterator[None]:
    """Record the gradients that a step computes, if it is a training step of the user's own.

    >>> from types import SimpleNamespace
    >>> model, trace = keras.Sequential([keras.layers.Dense(1)]), SimpleNamespace(recording=None)
    >>> with recorded_in(model, model.train_step, trace):
    ...     trace.recording is None
    True
    """
    if step != model.train_step or getattr(step, "__func__", None) is keras.Model.train_step:
        yield
        return

    def goes_elsewhere(targets: Sequence[Any]) -> bool:
        scaled = {tensor.op.name for tensor in trace.losses.scaled}
        return bool(scaled) and not scaled.isdisjoint(_behind(targets))

    with gradients.recorded(marks=False, known=trace.seen.known, leaves=goes_elsewhere) as trace.recording:
        yield


def _behind(tensors: Sequence[Any]) -> Mapping[str, Any]:
    return reached_from([each.op for each in tensors if tf.is_symbolic_tensor(each)], sources)


class OwnLosses:
    """The losses of a step of the user's own, of which the gradients are applied.

    >>> from types import SimpleNamespace
    >>> OwnLosses(SimpleNamespace(recording=None)).counts(lambda tensor: SAME)
    ((), {}, ())
    """

    def __init__(self, trace: Any) -> None:
        self._trace = trace
        self._recording = trace.recording or gradients.Recording()
        found = _applied(self._recording, trace) if trace.recording else []
        self._pairs = [
            pair for each in found for pair in zip(each.targets, each.seeds or [None] * len(each.targets), strict=False)
        ]
        self._unknown = self._recording.unseen or any(not tf.is_symbolic_tensor(target) for target, _ in self._pairs)
        self._pairs = [pair for pair in self._pairs if tf.is_symbolic_tensor(pair[0])]
        targets = [target for target, _ in self._pairs]
        self.known = gradients.of_gradients_by(self._recording.of_examples)
        """How the states of gradients with respect to tensors follow from others, by `id`."""
        if targets:
            seen, behind = trace.seen, _behind(targets)
            # The value of an own compute_loss that is differentiated here counts as its state says.
            seen.asked = [each for each in seen.asked if each.subject != STEPS_LOSS or each.made.op.name not in behind]
            seen.asked += [
                Asked(STEPS_LOSS, each, one_number=trace.losses.own_note, by_itself=True, by=numbers_behind(each, seen))
                for each in targets
            ]

    def counts(self, state_of: Callable[[Any], State]) -> tuple[Sequence[Any], Mapping[str, Any], tuple[str, ...]]:
        """How the losses count, from the states of tensors.

        These are the seeds whose gradients are added up over the replicas, how those among them count that count by a
        power of the share, by operations' names, and the plan's notes on losses of which this is not known.
        """
        begun = [
            (seed, gradients.seeded(state_of(target), state_of(seed) if tf.is_symbolic_tensor(seed) else SAME))
            for target, seed in self._pairs if seed is not None
        ]
        note = (self._trace.losses.own_note,) if self._unknown and not self._trace.losses.reduced else ()
        if not self._pairs:
            return (), {}, note
        # The gradient of a sum over the replicas is a sum over them: what it adds up must count by the share already.
        # A loss that was scaled counts so, too, and its gradients may be added to others.
        by_share = bool(self._trace.sums or self._trace.gathers or self._trace.losses.scaled)
        return *gradients.weighed(begun, self._recording.of_examples, state_of, always=by_share), note


def _applied(recording: gradients.Recording, trace: Any) -> list[gradients.Differentiation]:
    """The calls that compute gradients on their way to an optimizer, and not the calls within their losses."""
    made = {part.op.name for call in recording.found for part in call.markers}
    reached = reached_from(
        (part.op for marked in trace.gradients for part in marked.markers),
        lambda operation: () if operation.name in made else sources(operation),
    )
    return [call for call in recording.found if any(part.op.name in reached for part in call.markers)]
