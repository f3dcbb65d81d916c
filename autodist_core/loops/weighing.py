"""Find out which losses of a function are sums over the examples, and which are means.

In: for each loss, the seed of its differentiation and its state (see `autodist_core.capture.batch_axis`). Out: the
seeds of the losses that are sums. Their gradients are added up over the replicas. All other gradients count by the
replica's share of the batch::

    tf.reduce_mean(losses)                 a mean
    tf.reduce_sum(losses)                  a sum
    tf.reduce_sum(losses) * (1 / 64)       a sum: the number is a constant
    losses                                 a sum: a tape adds the entries up
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autodist_core.capture.batch_axis import ROWS, SUM, State


def added_up(targets: Iterable[tuple[Any, State]]) -> list[Any]:
    """The seeds of losses that are sums over the examples."""
    return [seed for seed, state in targets if _is_sum(state)]


def _is_sum(state: State) -> bool:
    return (state.kind == SUM and state.degree == 1) or (state.kind == ROWS and state.degree == 0)
