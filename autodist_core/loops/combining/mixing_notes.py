"""The plan's notes on a marked function: what gives other numbers than one device.

In: the findings of the static analysis (see `autodist_core.capture.batch_axis`), and the states of losses and results.
Out: sentences. Those that begin with "not exact" are certain.

>>> said_of(Found(), [], [])
()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from autodist_core.capture.batch_axis import ALIKE, REDUCED, SUM, Found, State, UncombinedResult, sentences
from autodist_core.plan import INEXACT


def said_of(found: Found, losses: Iterable[State], results: Iterable[tuple[int, Any, State]]) -> tuple[str, ...]:
    """The notes; `results` are the numbers that the function returns, each with its position and its state."""
    said = [f"{INEXACT}: {sentences.mixing(sentences.named(each.operation), each.what)}" for each in found.mixing]
    said += _of_losses(losses)
    said += [f"{INEXACT}: {sentences.kept('variable', each)}" for each in found.uncombined_writes]
    said += _of_results(results)
    said += [sentences.undecided(sentences.named(operation), "verify") for operation, _ in found.undecided]
    return tuple(dict.fromkeys(said))


def _of_losses(losses: Iterable[State]) -> Iterator[str]:
    for state in losses:
        if state.kind in REDUCED and state.kind != SUM:
            yield (
                f"{INEXACT}: a loss made by {sentences.named(state.origin)} is neither a mean nor a sum over the "
                "examples, and a replica has only its own"
            )
        elif state.kind not in (ALIKE, SUM):
            yield "a loss counts as a mean over the examples: it is not known how it is made of them"


def _of_results(results: Iterable[tuple[int, Any, State]]) -> Iterator[str]:
    for index, output, state in results:
        if state.kind in REDUCED and state.kind != SUM:
            subject = f"result {index} ({output.dtype.name})"
            yield f"{INEXACT}: {sentences.joined_otherwise(subject, UncombinedResult(index, state))}"
