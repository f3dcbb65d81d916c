"""Decide what counts how over the replicas, from how each tensor of a traced step depends on the examples.

In: a traced step, its updates, and the gradients that were recorded. Out: the same step, in which losses, additions and
results count as they must, and how the replicas' results become one::

    decided_for_whole_batch     a marked function: its numbers are those of one device
    decided_for_each_replica    a function of run(), with tf.distribute's meaning: gradients are added up
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from autodist_core.capture import Traced, batch_axis, combined_as_written, reached_from, sources, with_longest
from autodist_core.capture.batch_axis import Found, State, UncombinedResult, follow, sentences
from autodist_core.capture.gradients import weighing
from autodist_core.capture.gradients.recording import Differentiation, Recording
from autodist_core.capture.gradients.terms import Term, sum_of, terms_of, without
from autodist_core.capture.traced import Counted, Exchanged, name_of
from autodist_core.loops.combining.joining import given_to_all, joins
from autodist_core.loops.combining.own_writes import require_averaged, require_combined
from autodist_core.loops.combining.recomputed import find_recomputed
from autodist_core.loops.combining.side_state import additions, counted
from autodist_core.loops.combining.totals import with_totals
from autodist_core.loops.combining.updates_by_hand import averaged_by_hand, summed_with_itself
from autodist_core.loops.gradients.updates import Updates
from autodist_core.plan import INEXACT, UNDECIDED
from autodist_core.reports.reasons import Reason
from autodist_core.step.graph_item import Joined


@dataclass(frozen=True)
class Decided:
    """A traced step, how its results become one, and the plan's notes on it. `decided_for_whole_batch` has an example.
    """

    traced: Traced
    joined: tuple[Joined, ...]
    notes: tuple[str, ...]
    """On what may be a reason for other variables than one device's."""
    fixing: tuple[tuple[str, str], ...] = ()
    """What cannot run on a part of a batch. In `run()` each replica's batch is a whole one."""
    idle: tuple[int | None, ...] = ()
    """For each result of a function of `run()`: the output with its value on replicas without examples."""
    reported: tuple[str, ...] = ()
    """Notes on results that are not one device's."""


def decided_for_whole_batch(
    traced: Traced, updates: Updates, recording: Recording, reduced: Sequence[Any] = ()
) -> Decided:
    """The step of a marked function: its numbers are those of one device.

    Of what it has `reduced` over the replicas, a value that is the same on all replicas is its own sum, as on one
    device. Keras's optimizers reduce gradients, which may have been added up in variables.

    >>> from autodist_core.capture.gradients.example import recorded_trace
    >>> traced, recording = recorded_trace(lambda x: (tf.reduce_sum(x), tf.reduce_mean(x), 2.0 * x))
    >>> decided = decided_for_whole_batch(traced, Updates((), {}, (), frozenset()), recording)
    >>> [each.how for each in decided.joined]
    ['sum', 'mean', 'rows']
    """
    losses = _losses(updates.differentiations)
    known = weighing.of_gradients_by(recording.of_examples)
    again = find_recomputed(traced)
    traced = with_totals(with_longest(combined_as_written(traced)), recording, losses, known, again)
    found = follow(traced, known, again.alone)
    state_of = found.state_of

    added = [(each, state_of(each.added)) for each in additions(traced)]
    require_combined(updates.own_writes, added, state_of)
    of_losses = [(seed, weighing.seeded(state_of(target), state_of(seed))) for target, seed in losses]
    # The gradient of a sum over the replicas is a sum over them: what it adds up must count by the share already.
    over_replicas = bool(traced.exchanged.sums or traced.exchanged.gathers)
    summed, of_seeds = weighing.weighed(of_losses, recording.of_examples, state_of, always=over_replicas)
    by_share = counted(added) | of_seeds

    made_for_all = updates.made_of_gradients | again.operations.keys()
    sums, of_parts = weighing.sums_of_two_kinds(traced.outputs, _terms(traced), state_of, made_for_all)
    of_outputs = joins(traced.outputs, state_of, made_for_all, sums)
    outputs = {name_of(output) for output in traced.outputs}
    inside = [each for each in batch_axis.joined(traced, state_of) if each.tensor not in outputs]
    given = given_to_all(again.given, state_of)
    combined = {addition.write.name for addition, _ in added if addition.operation.name in by_share}
    uncombined = tuple(each for each in found.uncombined_writes if each.operation.name not in combined)
    traced = replace(
        traced, exchanged=_without_alike(traced, reduced, state_of), added_up=summed,
        counted={**traced.counted, **by_share, **of_parts},
        outputs=[sums.get(index, output) for index, output in enumerate(traced.outputs)],
    )
    renamed = (replace(each, tensor=name_of(output)) for each, output in zip(of_outputs, traced.outputs, strict=True))
    return Decided(
        traced, (*inside, *given, *renamed),
        said_of(replace(found, uncombined_writes=uncombined), (state for _, state in of_losses)),
        tuple(sentences.refused(sentences.named(each.operation), each.what) for each in found.fixing),
        reported=tuple(said_of_results(traced.outputs, of_outputs, state_of)),
    )


def _terms(traced: Traced) -> list[list[Term]]:
    """The terms of each output."""
    whole = {id(each) for each in traced.whole}
    batch = {each.op.name for each in (traced.examples, *traced.inputs) if id(each) not in whole}
    return [terms_of(output.op.inputs[0], without(batch)) for output in traced.outputs]


def _without_alike(traced: Traced, reduced: Sequence[Any], state_of: Callable[[Any], State]) -> Exchanged:
    """The sums over the replicas, without those of what is the same on all: such a value is its own sum."""
    needed = reached_from(traced.markers, sources)
    itself = {
        id(marker) for marker in reduced
        if state_of(marker.op.inputs[0]) == batch_axis.SAME and marker.op.name not in needed
    }
    return traced.exchanged._replace(sums=[each for each in traced.exchanged.sums if id(each) not in itself])


def decided_for_each_replica(
    traced: Traced, updates: Updates, returned: Sequence[Differentiation], sums: Sequence[Any],
    again: Mapping[str, Counted], replicas: int,
) -> Decided:
    """The step with tf.distribute's meaning: gradients are added up, and results are each replica's.

    A replica without examples does not run. What would be the same there as on all others counts for it, too: such
    terms of a loss, results and `sums` over the replicas. The replicas that run count them by their shares of the
    batch, times the number of replicas. `returned` computed the gradients of which results are made.
    `again` says how values in the updates count that are added up twice.

    >>> from autodist_core.capture.gradients.example import recorded_trace
    >>> traced, updates = recorded_trace(tf.reduce_sum)[0], Updates((), {}, (), frozenset())
    >>> decided = decided_for_each_replica(traced, updates, returned=(), sums=(), again={}, replicas=2)
    >>> [each.how for each in decided.joined]
    ['each']
    """
    losses = _losses({id(each): each for each in (*updates.differentiations, *returned)}.values())
    traced = combined_as_written(traced)
    found = follow(traced, {})
    by_name = {source.variable.name: source.variable for source in traced.sources}
    of_added = ((each, found.state_of(each.added)) for each in additions(traced))
    require_averaged(updates.own_writes, by_name, of_added, found.uncombined_writes)

    def is_alike(*tensors: Any) -> bool:
        return all(found.state_of(each) == batch_axis.SAME for each in tensors)

    alike = [seed for target, seed in losses if is_alike(target, seed)]
    alike += [marker for marker in sums if is_alike(marker.op.inputs[0]) and marker.dtype.is_floating]
    idle, hidden = _on_idle_replicas(traced.outputs, is_alike, updates.made_of_gradients)
    outputs = [*traced.outputs, *hidden]
    by_share = {tensor.op.name: Counted(0, tensor.dtype.base_dtype, 1, replicas) for tensor in alike}
    traced = replace(traced, outputs=outputs, added_up=[seed for _, seed in losses], counted={**by_share, **again})
    notes = (
        *said_of(replace(found, undecided=()), ()), *averaged_by_hand(traced, updates.differentiations),
        *summed_with_itself(traced),
    )
    joined = tuple(Joined(name_of(output), "each") for output in outputs)
    return Decided(traced, joined, tuple(dict.fromkeys(notes)), idle=idle)


def _losses(calls: Iterable[Differentiation]) -> list[tuple[Any, Any]]:
    """What was differentiated, each with its seed."""
    return [(target, seed) for each in calls for target, seed in zip(each.targets, each.seeds, strict=False)]


def _on_idle_replicas(
    outputs: Sequence[Any], is_alike: Callable[..., bool], made_of_gradients: Collection[str]
) -> tuple[tuple[int | None, ...], list[Any]]:
    """For each output the output that has its value on idle replicas, and new outputs: what is alike in a sum."""
    idle: list[int | None] = []
    hidden: list[Any] = []
    for index, output in enumerate(outputs):
        terms = terms_of(output.op.inputs[0], lambda tensor: bool(tensor.shape.rank == 0))
        alike = [term for term in terms if is_alike(term.tensor, *(by for by, _ in term.numbers))]
        if is_alike(output) or output.op.name in made_of_gradients:
            idle.append(index)
        elif alike:
            with output.graph.as_default():
                hidden.append(tf.identity(sum_of(alike, [term.tensor for term in alike], output.dtype)))
            idle.append(len(outputs) + len(hidden) - 1)
        else:
            idle.append(None)
    return tuple(idle), hidden


def said_of(found: Found, losses: Iterable[State]) -> tuple[str, ...]:
    """The notes on what may be a reason for other variables. Those that begin with "not exact" are certain.

    >>> said_of(Found(), [])
    ()
    """
    at, named = sentences.at, sentences.named
    said: list[str] = [
        Reason.of(
            f"{INEXACT}: {sentences.mixing(named(each.operation), each.what)}{at(each.operation)}",
            (each.within.name,),
        )
        for each in found.mixing
    ]
    said += _of_losses(losses)
    said += [f"{INEXACT}: {sentences.kept('variable', each)}" for each in found.uncombined_writes]
    said += [f"{UNDECIDED}: {sentences.undecided(named(each))}{at(each)}" for each, _ in found.undecided]
    return tuple(dict.fromkeys(said))


def _of_losses(losses: Iterable[State]) -> Iterator[str]:
    for state in losses:
        if isinstance(state, batch_axis.Nonlinear):
            yield Reason.of(
                f"{INEXACT}: a loss made by {sentences.named(state.origin)} is neither a mean nor a sum over the "
                f"examples, and a replica has only its own{sentences.at(state.origin)}",
                [] if state.origin is None else [state.origin.name],
            )
        elif state != batch_axis.SAME and not isinstance(state, batch_axis.Linear):
            yield "a loss counts as a mean over the examples: it is not known how it is made of them"


def said_of_results(
    outputs: Sequence[Any], joined: Sequence[Joined], state_of: Callable[[Any], State]
) -> Iterator[str]:
    """The notes on numbers that the function returns and that become a mean. Variables are exact.

    >>> list(said_of_results([tf.constant(1.0)], [Joined("loss", "mean")], lambda output: batch_axis.Sum(0)))
    []
    """
    for index, (output, each) in enumerate(zip(outputs, joined, strict=True)):
        if each.how == "mean" and isinstance(state := state_of(output), batch_axis.Nonlinear):
            result, found = f"result {index} ({output.dtype.name})", UncombinedResult(index, state)
            yield f"{INEXACT}: {sentences.joined_otherwise(result, found)}"
