"""Medians, quartiles and ratios of the times that contenders took in turns."""

import statistics
from collections.abc import Mapping, Sequence

Times = Mapping[str, Sequence[float]]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile.

    >>> quartiles([4.0, 1.0, 3.0, 2.0, 5.0])
    (2.0, 3.0, 4.0)
    """
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratio(times: Times, one: str, other: str) -> tuple[float, float, float]:
    """Return the quartiles, over rounds, of the ratio of one contender's time to another's.

    >>> ratio({"two": [2.0, 3.0, 4.0], "plain": [1.0, 1.0, 1.0]}, "two", "plain")
    (2.5, 3.0, 3.5)
    """
    return quartiles([a / b for a, b in zip(times[one], times[other], strict=True)])


def noise(values: Sequence[float]) -> float:
    """Return how far the quartiles of one contender's times are apart, divided by their median.

    >>> noise([1.0, 2.0, 3.0])
    0.5
    """
    low, middle, high = quartiles(values)
    return (high - low) / middle
