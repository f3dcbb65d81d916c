"""The plan's notes on a marked function: what gives other numbers than one device.

In: the findings of the static analysis (see `autodist_core.capture.batch_axis`), and the states of losses and results.
Out: sentences. Those that begin with "not exact" are certain.

>>> said_of(Found(), [], [])
()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from autodist_core.capture.batch_axis import ALIKE, REDUCED, ROWS, SUM, Found, State
from autodist_core.plan import INEXACT

_HOW = {
    "sum": "added up over the replicas", "max": "the largest of the replicas'", "min": "the smallest of the replicas'",
    "mean": "averaged over the replicas",
}


def said_of(found: Found, losses: Iterable[State], results: Iterable[tuple[int, Any, State]]) -> tuple[str, ...]:
    """The notes; `results` are the numbers that the function returns, each with its position and its state."""
    said = [*_of_couplings(found), *_of_losses(losses), *_of_variables(found), *_of_results(results)]
    said += [
        f"whether {_operation(operation)} mixes the examples of a batch is not known: verify compares with one device"
        for operation, _ in found.undecided
    ]
    return tuple(dict.fromkeys(said))


def _of_couplings(found: Found) -> Iterator[str]:
    for each in found.couplings:
        yield f"{INEXACT}: {_operation(each.operation)} {each.what}, and a replica has only its own"


def _of_losses(losses: Iterable[State]) -> Iterator[str]:
    for state in losses:
        summed = state.kind in (SUM, ROWS) and state.degree in (0, 1)
        if state.kind in REDUCED and not summed:
            yield (
                f"{INEXACT}: a loss made by {_operation(state.origin)} is neither a mean nor a sum over the examples, "
                "and a replica has only its own"
            )
        elif state.kind != ALIKE and not summed:
            yield "a loss counts as a mean over the examples: it is not known how it is made of them"


def _of_variables(found: Found) -> Iterator[str]:
    for each in found.uncombined_writes:
        variable, origin = each.variable, each.state.origin
        how = _HOW.get(variable.aggregation, "the first replica's")
        if variable.aggregation == "none" and tf.as_dtype(variable.dtype).is_floating:
            how = _HOW["mean"]
        made = "the same on every replica" if origin is None else f"made by {_operation(origin)}"
        yield f"{INEXACT}: variable {variable.name!r} is {how}, and what is written to it is {made}"


def _of_results(results: Iterable[tuple[int, Any, State]]) -> Iterator[str]:
    for index, output, state in results:
        if state.kind in REDUCED and state.kind != SUM:
            yield (
                f"{INEXACT}: result {index} ({output.dtype.name}) is the replicas' mean, and "
                f"{_operation(state.origin)} does not make a mean over the examples"
            )


def _operation(operation: Any) -> str:
    return f"{operation.type} ({operation.name})"
