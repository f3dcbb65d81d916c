"""What a step does with the examples of a batch together, which a replica can do with its own only: said in the plan.

While the step is traced, hooks note which operations each metric makes, and which values are right although they are
made of the whole batch: what Keras reduces a loss to (corrected in `losses.py`), and the statistics of batch
normalization, which have a note of their own. Afterwards the batch axis is followed through the traced step, and what
was found is put into words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from autodist_core.capture import Traced
from autodist_core.capture.batch_axis import NO_CLAIM, Coupling, Found, State, follow, mean_over_examples, rows
from autodist_keras.capture.hooks import hook

_EXACT = "not exact: "
_ELSEWHERE = "the training step"
_COUNTED = re.compile(r"_\d+$")


@dataclass
class Seen:
    """What hooks saw of a step, for the analysis that follows."""

    known: list[tuple[Any, State]] = field(default_factory=list)
    """Tensors of which it is known otherwise what they are."""
    losses: set[str] = field(default_factory=set)
    """The names of the compiled losses."""
    silent: list[tuple[Any, int, int]] = field(default_factory=list)
    """Operations that have a note of their own: a graph, and the first and the last one's position in it."""
    metrics: list[tuple[Any, int, int, str]] = field(default_factory=list)
    """The same of the operations that a metric's update made, and the metric's name."""

    def reduced(self, name: str, loss: Any) -> None:
        """A loss as Keras reduces it is right, whatever it is made of."""
        self.losses.add(name)
        self.known.append((loss, rows(0) if loss.shape.rank else mean_over_examples(loss.op)))

    @contextmanager
    def said(self) -> Iterator[None]:
        """What is traced meanwhile has a note of its own."""
        graph = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        yield
        self.silent.append((graph, first, len(graph.get_operations())))

    @contextmanager
    def updating(self, metric: str) -> Iterator[None]:
        """What is traced meanwhile is a metric's update."""
        graph = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        yield
        self.metrics.append((graph, first, len(graph.get_operations()), metric))


@dataclass(frozen=True)
class Notes:
    """What the plan says of a step that is not as on one device."""

    trained: tuple[str, ...] = ()
    """Why other weights are trained."""
    reported: tuple[str, ...] = ()
    """Why metrics or results are other numbers, or may be."""


@contextmanager
def watched(model: Any, trace: Any) -> Iterator[None]:
    """Note while a step is traced what metrics and batch normalization make."""
    with ExitStack() as hooks:
        for metric in _single(model.metrics):
            hooks.enter_context(hook(metric, "update_state", _noted(metric, trace.seen)))
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized:
                hooks.enter_context(hook(layer, "_moments", _known(layer._moments, trace.seen)))
        yield


def _single(metrics: Sequence[Any]) -> Iterator[Any]:
    for metric in metrics:
        inner = getattr(metric, "metrics", ())
        yield from _single(inner) if inner else (metric,)


def _noted(metric: Any, seen: Seen) -> Any:
    update_state = metric.update_state

    def hooked(*arguments: Any, **named: Any) -> Any:
        with seen.updating(metric.name):
            return update_state(*arguments, **named)

    return hooked


def _known(moments: Any, seen: Seen) -> Any:
    def hooked(*arguments: Any, **named: Any) -> Any:
        with seen.said():
            found = moments(*arguments, **named)
        seen.known += [(value, NO_CLAIM) for value in found]
        return found

    return hooked


def notes(model: Any, traced: Traced, seen: Seen, results: Sequence[str]) -> Notes:
    """What the plan says of a traced training step; `results` names what the step returns."""
    found = follow(traced, {id(tensor): state for tensor, state in seen.known})
    names = _Names(model, seen)
    trained, reported = _of_couplings(found, names)
    for owner, of_metric, note in _of_variables(found, names):
        (reported if of_metric else trained).setdefault(owner or note, note)
    for each in found.uncombined_results:
        note = (
            f"{_EXACT}result {results[each.index]!r} of the step is the replicas' mean, and "
            f"{_operation(each.state.origin)} does not make a mean over the examples"
        )
        reported.setdefault(note, note)
    for operation in found.undecided:
        owner = names.owner(operation, operation)
        note = (
            f"whether {_operation(operation)} in {owner} mixes the examples of a batch is not known: verify(x, y) "
            "compares with one device"
        )
        reported.setdefault(note, note)
    return Notes(tuple(trained.values()), tuple(reported.values()))


def _of_couplings(found: Found, names: _Names) -> tuple[dict[str, str], dict[str, str]]:
    """One note for each layer and loss, and one for each metric, by the name of what it is about."""
    groups: dict[str, list[Coupling]] = {}
    metrics = set()
    for each in found.couplings:
        if not names.is_silent(each.by):
            metric = names.metric(each.by)
            owner = f"metric {metric!r}" if metric else names.owner(each.operation, each.within)
            groups.setdefault(owner, []).append(each)
            metrics |= {owner} if metric else set()
    trained: dict[str, str] = {}
    reported: dict[str, str] = {}
    for owner, group in groups.items():
        more = f", and {len(group) - 1} more such" if len(group) > 1 else ""
        (reported if owner in metrics else trained)[owner] = (
            f"{_EXACT}in {owner}, {_operation(group[0].operation)} {group[0].what}, and a replica has only "
            f"its own{more}"
        )
    return trained, reported


def _of_variables(found: Found, names: _Names) -> Iterator[tuple[str, bool, str]]:
    """A note for each variable: the metric that writes it, whether it is a metric's, and the note."""
    for each in found.uncombined_writes:
        variable, origin = each.variable, each.state.origin
        if origin is not None and origin.type == "ReadVariableOp":
            origin = each.operation.inputs[1].op
        how = _HOW.get(variable.aggregation, "the first replica's")
        if variable.aggregation == "none" and tf.as_dtype(variable.dtype).is_floating:
            how = _HOW["mean"]
        made = "the same on every replica" if origin is None else f"made by {_operation(origin)}"
        metric = names.metric(each.operation)
        whose = f"metric {metric!r}" if metric else ""
        subject = f"{whose}: its variable" if metric else "variable"
        # What is added up is logged: a layer's sum that gradients are made of is refused.
        of_metric = bool(metric) or variable.kind == "metric" or variable.aggregation == "sum"
        yield whose, of_metric, f"{_EXACT}{subject} {variable.name!r} is {how}, and what is written to it is {made}"


_HOW = {
    "sum": "added up over the replicas", "max": "the largest of the replicas'", "min": "the smallest of the replicas'",
    "mean": "averaged over the replicas",
}


class _Names:
    """To which layer, loss or metric an operation belongs."""

    def __init__(self, model: Any, seen: Seen) -> None:
        self._layers = {layer.name for layer in model._flatten_layers(include_self=False)}
        self._losses = seen.losses
        self._seen = seen

    def is_silent(self, operation: Any) -> bool:
        """Whether an operation has a note of its own."""
        return any(_is_within(operation, *each) for each in self._seen.silent)

    def metric(self, operation: Any) -> str | None:
        """The metric whose update made an operation."""
        return next((name for *place, name in self._seen.metrics if _is_within(operation, *place)), None)

    def owner(self, operation: Any, within: Any) -> str:
        """The layer or the loss in whose name scope an operation stands, or the call that runs it."""
        for name in (operation.name, within.name):
            for scope in reversed(name.split("/")[:-1]):
                # TensorFlow counts scopes of one name.
                for candidate in (scope, _COUNTED.sub("", scope)):
                    if candidate in self._losses:
                        return f"loss {candidate!r}"
                    if candidate in self._layers:
                        return f"layer {candidate!r}"
        return _ELSEWHERE


def _is_within(operation: Any, graph: Any, first: int, last: int) -> bool:
    # Operations stand in the order in which they were made.
    return operation.graph is graph and operation in graph.get_operations()[first:last]


def _operation(operation: Any) -> str:
    return f"{operation.type} ({operation.name})"
