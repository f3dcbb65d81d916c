"""Find out which losses of a function are sums over the examples, and which are means.

In: for each loss, the seed of its differentiation and its state (see `autodist_core.capture.batch_axis`). Out: the
seeds of which the gradients are added up over the replicas. All other gradients count by the replica's share of the
batch::

    tf.reduce_mean(losses)                 a mean
    tf.reduce_sum(losses)                  a sum
    tf.reduce_sum(losses) * (1 / 64)       a sum: the number is a constant
    losses                                 a sum: a tape adds the entries up

Where a function has losses of both kinds, such as a sum and a penalty of the weights, all gradients are added up, and
the seeds of the means count by the share.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autodist_core.capture.batch_axis import ROWS, SUM, State
from autodist_core.capture.traced import Counted


def weighed(targets: Iterable[tuple[Any, State]]) -> tuple[list[Any], dict[str, Counted]]:
    """The seeds of which the gradients are added up, and how those of means among them count, by operations' names."""
    found = [(seed, _is_sum(state)) for seed, state in targets]
    if not any(is_sum for _, is_sum in found):
        return [], {}
    counted = {seed.op.name: Counted(0, seed.dtype.base_dtype, 1) for seed, is_sum in found if not is_sum}
    return [seed for seed, _ in found], counted


def _is_sum(state: State) -> bool:
    return (state.kind == SUM and state.degree == 1) or (state.kind == ROWS and state.degree == 0)
