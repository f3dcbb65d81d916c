"""Notes for the plan on computations that mix the examples of a batch. A replica can mix only its own examples.

In: a model and its traced step. Out: `Notes`, the sentences that the plan and `verify` show::

    not exact: in layer 'centred', Mean (centred/Mean) gives each example a value of the whole batch, and a replica has
    only its own

`mixing.py` finds these computations. The notes are made with the capture: later, the states of tensors are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autodist_core.capture import batch_axis
from autodist_core.capture.batch_axis import Coupling, Found, State, UncombinedWrite, sentences
from autodist_core.kernel import joining
from autodist_core.plan import INEXACT, UNDECIDED
from autodist_core.reports.reasons import Reason
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex, output_type
from autodist_core.step.naming import node_of
from autodist_keras.capture.draws import place_of
from autodist_keras.capture.mixing import STEPS_LOSS, Asked, Seen

_INEXACT = f"{INEXACT}: "
_REMEDY = "verify(x, y) compares with one device"
_WEIGHTED = (
    "; for a mean over the examples, let the metric update a keras.metrics.Mean with the mean and "
    "sample_weight=tf.shape(y_pred)[0], the number of examples"
)
_UNKNOWN_RESULT = (
    "result {!r} is {}, which may not be one device's: return the sum, the maximum or the minimum of integers itself, "
    "or a float, which counts as a mean over the examples"
)


@dataclass(frozen=True)
class Notes:
    """The plan's notes on a step that gives other numbers than one device.

    >>> Notes().trained
    ()
    """

    trained: tuple[str, ...] = ()
    """The reasons for other weights."""
    reported: tuple[str, ...] = ()
    """The reasons for other metrics or results."""
    unknown: tuple[str, ...] = ()
    """What the analysis cannot decide: `verify` accepts no difference for these."""
    statistics: tuple[str, ...] = ()
    """The operations that make the statistics of batch normalization."""
    fixing: tuple[tuple[str, str], ...] = ()
    """What cannot run on a part of a batch, and its layer; and what to do instead."""
    in_kernel: tuple[str, ...] = ()
    """The layers that TensorFlow's kernel normalizes."""


def notes(
    model: Any, found: Found, seen: Seen, results: Sequence[str], other: Sequence[str],
    step: str = "the training step",
) -> Notes:
    """The plan's notes on a step that was followed, without the `other` notes, which the plan has already.

    `results` names the values that the step returns, and `step` the step itself.

    >>> import keras
    >>> import tensorflow as tf
    >>> from autodist_core.capture.example import example_traced
    >>> from autodist_keras.capture.mixing import followed
    >>> def centred(x, kernel):
    ...     return tf.reduce_mean((x - tf.reduce_mean(x, axis=0, name="middle")) @ kernel)
    >>> found = followed(example_traced(loss_of=centred), Seen(), {})
    >>> print(*notes(keras.Sequential(), found, Seen(), ["loss", "norm"], ()).trained)
    not exact: in the training step, Mean (middle) gives each example a value of the whole batch, and a replica has
        only its own
    """
    names = _Names(model, seen, step)
    trained, reported = _of_couplings(found, names)
    _add_variables(found, names, trained, reported)
    for each in found.uncombined_results:
        note = _INEXACT + sentences.joined_otherwise(_result(results[each.index]), each)
        reported.setdefault(note, note)
    unknown: dict[str, str] = {}
    for operation, within in found.undecided:
        metric = names.metric(operation) or names.metric(within)
        owner = f"metric {metric!r}" if metric else names.owner(operation, within)
        note = f"{UNDECIDED}: {sentences.undecided(f'{sentences.named(operation)} in {owner}')}"
        note += "" if metric else names.at(operation, owner)
        (reported if metric else unknown).setdefault(note, note)
    for operation, within in found.of_gradients[:1]:
        owner = names.owner(operation, within)
        where = f"{sentences.named(operation)} in {owner}"
        unknown.setdefault(where, sentences.of_gradient(where, _REMEDY) + names.at(operation, owner))
    trained |= {f"loss {name!r}": note for name, note in seen.inexact.items()}
    for asked in seen.asked:
        said = _of_loss(asked, state := _named(asked, found))
        if said is not None and asked.subject not in trained:
            certain = said.startswith(_INEXACT)
            # A compiled loss is found by its name.
            said += sentences.at(state.origin) if certain and not asked.subject.startswith("loss ") else ""
            (trained if certain else unknown).setdefault(said, Reason.of(said, [asked.made.op.name]))
    if any(note.startswith(f"{_INEXACT}{STEPS_LOSS} ") for note in trained.values()):
        # What Keras's tracker of the loss is updated with has the same cause.
        reported.pop("metric 'loss'", None)
    undecided = tuple(note for note in unknown.values() if note not in other)
    fixing = [
        sentences.refused(f"{sentences.named(each.by)} in {names.owner(each.operation, each.within)}", each.what)
        for each in found.fixing
    ]
    of_norms = tuple(seen.statistics), tuple(fixing), tuple(seen.in_kernel)
    return Notes(tuple(trained.values()), tuple(reported.values()), undecided, *of_norms)


def said_of_results(item: GraphItem, names: Sequence[str]) -> Iterator[str]:
    """The plan's notes on results for which it is not known how the replicas' values combine.

    >>> from autodist_core.capture.example import example_step
    >>> list(said_of_results(example_step(), ["loss", "norm"]))
    []
    """
    if item.concat_outputs:
        return
    index = StepIndex.of(item)
    for name, tensor in zip(names, item.outputs, strict=True):
        cone = index.cone([node_of(tensor)])
        # The gradients and the metrics' state are those of the whole batch.
        of_whole_batch = cone & index.markers.keys() or any(
            touch.variable in index.written_by_compute for node in cone for touch in index.touches.get(node, ())
        )
        if not of_whole_batch and not joining(index, tensor):
            how = "added up over the replicas" if output_type(index, tensor).is_integer else "the first replica's"
            yield _UNKNOWN_RESULT.format(name, how)


def _result(path: str) -> str:
    """What the notes call a result of the step. A step that returns a single tensor has no path to it."""
    return f"result {path!r} of the step" if path else "the result of the step"


def _named(asked: Asked, found: Found) -> State:
    """The state of a loss, with the first of its numbers that is no mean or sum over the examples as its origin."""
    state = found.state_of(asked.made)
    if not isinstance(state, batch_axis.Nonlinear):
        return state
    inexact = (each.op for each in asked.by if isinstance(found.state_of(each), batch_axis.Nonlinear))
    return replace(state, origin=next(inexact, state.origin))


def _of_loss(asked: Asked, state: State) -> str | None:
    """The note on the value of a loss, or None if the replicas' values combine to one device's value."""
    alike = state == batch_axis.SAME
    if asked.by_itself and (alike or isinstance(state, (batch_axis.Linear, batch_axis.Rows))):
        return None
    degree = asked.degree
    if degree is None:
        # Values that Keras does not reduce: sums are added up, and means and equal values count by the share.
        sums = isinstance(state, batch_axis.Linear) and state.degree >= 0
        degree = min(state.degree, 1) if sums else int(not alike)
    if alike and degree:
        return f"{_INEXACT}{asked.subject} is the same {asked.alike}"
    if alike or (isinstance(state, batch_axis.Linear) and state.degree == degree):
        return None
    if isinstance(state, batch_axis.Rows):
        if not (state.degree or state.stride or (state.subset and not degree)):
            return None
        by = sentences.named(state.origin)
        what = (
            "gives a value for some examples only, and the mean of these is no mean over the examples of the batch"
            if state.subset else f"gives each example a value of its place in the batch, by {by}"
            if state.stride else "gives each example a value that depends on how many examples the batch has, by "
            f"{by}, and a replica has only its own"
        )
        return f"{_INEXACT}{asked.subject} {what}"
    if not isinstance(state, batch_axis.Reduced):
        return asked.one_number or None
    return (
        f"{_INEXACT}{asked.subject} makes a value of the whole batch that is no mean over its examples, by "
        f"{sentences.named(state.origin)}, and a replica has only its own"
    )


def _of_couplings(found: Found, names: _Names) -> tuple[dict[str, str], dict[str, str]]:
    """One note for each layer and loss, and one for each metric, by the name of the layer, loss or metric."""
    groups: dict[str, list[Coupling]] = {}
    metrics = set()
    for each in found.mixing:
        if not names.is_silent(each.by):
            metric = names.metric(each.by) or names.metric(each.within)
            owner = f"metric {metric!r}" if metric else names.owner(each.operation, each.within)
            groups.setdefault(owner, []).append(each)
            metrics |= {owner} if metric else set()
    trained: dict[str, str] = {}
    reported: dict[str, str] = {}
    for owner, group in groups.items():
        more = f", and {len(group) - 1} more such" if len(group) > 1 else ""
        first = group[0].operation
        said = sentences.mixing(f"in {owner}, {sentences.named(first)}", group[0].what)
        note = Reason.of(f"{_INEXACT}{said}{more}{names.at(first, owner)}", (each.within.name for each in group))
        (reported if owner in metrics else trained)[owner] = note
    return trained, reported


def _add_variables(found: Found, names: _Names, trained: dict[str, str], reported: dict[str, str]) -> None:
    """Add the notes on variables. A metric has one note, which names all of its variables that are not exact."""
    for each in found.uncombined_writes:
        metric = names.metric(each.operation) or names.metric(each.within)
        whose = f"metric {metric!r}" if metric else ""
        # A variable that is added up is only logged: a layer's sum on which gradients depend is refused.
        only_logged = bool(metric) or each.variable.kind == "metric" or each.variable.aggregation == "sum"
        notes = reported if only_logged else trained
        if not metric:
            note = _INEXACT + sentences.kept("variable", each)
            notes.setdefault(note, Reason.of(note, [each.within.name]))
        elif whose in notes:
            notes[whose] += f"; {sentences.kept('its variable', each)}"
        else:
            notes[whose] = _INEXACT + sentences.kept(f"{whose}: its variable", each)
    of_batches = [names.metric(each.operation) for each in found.uncombined_writes if _adds_a_mean(each)]
    for whose in {f"metric {metric!r}" for metric in of_batches} & reported.keys():
        reported[whose] += _WEIGHTED


def _adds_a_mean(write: UncombinedWrite) -> bool:
    """Whether a metric adds one mean for each batch to a variable, as if all batches had equally many examples."""
    state = write.state
    made = state.origin is not None and state.origin.type == "Mean"
    return write.variable.aggregation == "sum" and isinstance(state, batch_axis.Mixed) and made


class _Names:
    """Finds the layer, loss or metric to which an operation belongs."""

    def __init__(self, model: Any, seen: Seen, elsewhere: str) -> None:
        self.elsewhere = elsewhere
        self._owner = owners(model, seen, elsewhere)
        self._seen = seen

    def is_silent(self, operation: Any) -> bool:
        """Whether an operation has a note of its own."""
        return any(_is_within(operation, *each) for each in self._seen.silent)

    def at(self, operation: Any, owner: str) -> str:
        """Where an operation of the step itself was made. One of a layer, a loss or a metric is found by that name."""
        return sentences.at(operation) if owner == self.elsewhere else ""

    def metric(self, operation: Any) -> str | None:
        """The metric whose update made an operation."""
        return next((name for *place, name in self._seen.metrics if _is_within(operation, *place)), None)

    def owner(self, operation: Any, within: Any) -> str:
        """The layer or the loss whose name scope contains an operation, or contains the call that runs it."""
        owner = self._owner(operation.name)
        return owner if owner != self.elsewhere else self._owner(within.name)


def owners(model: Any, seen: Seen, elsewhere: str) -> Callable[[str], str]:
    """A function that says whose an operation is, by its name: the layer or the loss whose name scope contains it.

    >>> import keras
    >>> owner = owners(keras.Sequential([keras.layers.Dense(1, name="table")]), Seen(), "the training step")
    >>> owner("small/table_1/GatherV2"), owner("Mean")
    ("layer 'table'", 'the training step')
    """
    names = {layer.name for layer in model._flatten_layers(include_self=False)} | {*seen.losses}

    def owner(name: str) -> str:
        found = place_of(name, names)
        return f"{'loss' if found in seen.losses else 'layer'} {found!r}" if found else elsewhere

    return owner


def _is_within(operation: Any, graph: Any, first: int, last: int) -> bool:
    # A graph lists its operations in the order in which they were made.
    return operation.graph is graph and operation in graph.get_operations()[first:last]
