"""A small set of combinations in which every two values of different axes meet at least once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product


def pairs_of(combination: Mapping[str, str]) -> set[tuple]:
    """Every two (axis, value) of one combination."""
    return set(combinations(sorted(combination.items()), 2))


def pairwise(axes: Mapping[str, Sequence]) -> list[dict]:
    """Greedy and deterministic: the first combination, in the order of the axes, that brings the most new pairs."""
    everything = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    missing = set().union(*(pairs_of(combination) for combination in everything))
    chosen = []
    while missing:
        best = max(everything, key=lambda combination: len(pairs_of(combination) & missing))
        missing -= pairs_of(best)
        chosen.append(best)
    return chosen
