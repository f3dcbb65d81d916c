"""Find out which losses of a function are sums over the examples, and which are means.

In: for each loss, the seed of its differentiation and its state (see `autodist_core.capture.batch_axis`). Out: the
seeds of which the gradients are added up over the replicas. All other gradients count by the replica's share of the
batch::

    tf.reduce_mean(losses)                 a mean
    tf.reduce_sum(losses)                  a sum
    tf.reduce_sum(losses) * (1 / 64)       a sum: the number is a constant
    losses                                 a sum: a tape adds the entries up

Where a function has losses of both kinds, such as a sum and a penalty of the weights, all gradients are added up, and
the seeds of the means count by the share. A result with terms of both kinds is added up over the replicas likewise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any

import tensorflow as tf

from autodist_core.capture.batch_axis import ALIKE, NO_CLAIM, ROWS, SUM, State
from autodist_core.capture.traced import Counted
from autodist_core.loops.terms import Term


def weighed(
    targets: Iterable[tuple[Any, State]], of_examples: Sequence[Any] = ()
) -> tuple[list[Any], dict[str, Counted]]:
    """The seeds of which the gradients are added up, and how those of means among them count, by operations' names.

    `of_examples` are seeds of means that count in any case.
    """
    found = [(seed, _is_sum(state)) for seed, state in targets]
    counted = {seed.op.name: _by_share(seed) for seed in of_examples}
    if not any(is_sum or seed.op.name in counted for seed, is_sum in found):
        return [], counted
    counted |= {seed.op.name: _by_share(seed) for seed, is_sum in found if not is_sum}
    return [seed for seed, _ in found], counted


def seeded(target: State, seed: State) -> State:
    """The state of a loss whose differentiation begins with a tensor that the user gave: of their product, added up."""
    degrees = {ALIKE: 0, ROWS: seed.degree}.get(seed.kind, seed.degree if seed.is_size else None)
    if degrees is None or target.kind not in (ROWS, SUM):
        return target if degrees == 0 else NO_CLAIM
    return State(SUM, degree=target.degree + degrees + int(target.kind == ROWS), origin=target.origin)


def means_of_examples(noted: Iterable[tuple[Any, Any, Sequence[Any]]], states: Iterable[State]) -> list[Any]:
    """The seeds of means over the examples that are differentiated with respect to the examples.

    One device divides by the whole batch there, and a replica by its slice. `states` are those of each target and of
    its sources, in the order of `noted`.
    """
    rest = iter(states)
    found = []
    for _, seed, sources in noted:
        target, *of_sources = islice(rest, 1 + len(sources))
        if target.kind == SUM and target.degree == 0 and all(each.kind == ROWS for each in of_sources):
            found.append(seed)
    return found


def sums_of_two_kinds(
    outputs: Sequence[Any], terms: Sequence[Sequence[Term]], states: Iterable[State], made_of_gradients: Collection[str]
) -> tuple[dict[int, Any], dict[str, Counted]]:
    """Make new outputs for those with terms of both kinds, by index; and how their terms that are no sums count."""
    made: dict[int, Any] = {}
    counted: dict[str, Counted] = {}
    rest = iter(states)
    for index, (output, own) in enumerate(zip(outputs, terms, strict=True)):
        found = list(islice(rest, len(own)))
        sums = [_is_sum(state) for state in found]
        known = all(state.kind == ALIKE or (state.kind == SUM and state.degree in (0, 1)) for state in found)
        if not known or all(sums) or not any(sums) or output.op.name in made_of_gradients:
            continue
        with output.graph.as_default():
            parts = [term.signed(tf.identity(term.tensor, name="term")) for term in own]
            made[index] = tf.identity(tf.add_n(parts))
        for part, is_sum in zip(parts, sums, strict=True):
            if not is_sum:
                counted[part.op.name] = _by_share(part)
    return made, counted


def _by_share(identity: Any) -> Counted:
    return Counted(0, identity.dtype.base_dtype, 1)


def _is_sum(state: State) -> bool:
    return (state.kind == SUM and state.degree == 1) or (state.kind == ROWS and state.degree == 0)
