"""The plan's notes on a marked function: what gives other numbers than one device.

In: the findings of the static analysis (see `autodist_core.capture.batch_axis`), and the states of losses and results.
Out: sentences. Those that begin with "not exact" are certain.

>>> said_of(Found(), []), said_of_results([])
((), ())
"""

from collections.abc import Iterable, Iterator
from typing import Any

from autodist_core.capture.batch_axis import REDUCED, Found, Kind, State, UncombinedResult, sentences
from autodist_core.plan import INEXACT
from autodist_core.reports import Reason


def said_of(found: Found, losses: Iterable[State]) -> tuple[str, ...]:
    """The notes on what may be a reason for other variables."""
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
    said += [sentences.undecided(named(operation), "verify") + at(operation) for operation, _ in found.undecided]
    return tuple(dict.fromkeys(said))


def _of_losses(losses: Iterable[State]) -> Iterator[str]:
    for state in losses:
        if state.kind in REDUCED and state.kind != Kind.SUM:
            yield Reason.of(
                f"{INEXACT}: a loss made by {sentences.named(state.origin)} is neither a mean nor a sum over the "
                f"examples, and a replica has only its own{sentences.at(state.origin)}",
                [] if state.origin is None else [state.origin.name],
            )
        elif state.kind not in (Kind.ALIKE, Kind.SUM):
            yield "a loss counts as a mean over the examples: it is not known how it is made of them"


def said_of_results(results: Iterable[tuple[int, Any, State]]) -> tuple[str, ...]:
    """The notes on numbers that the function returns, each with its position and its state. Variables are exact."""
    reduced = [each for each in results if each[2].kind in REDUCED and each[2].kind != Kind.SUM]
    names = [f"result {index} ({output.dtype.name})" for index, output, _ in reduced]
    uncombined = [UncombinedResult(index, state) for index, _, state in reduced]
    return tuple(f"{INEXACT}: {said}" for said in map(sentences.joined_otherwise, names, uncombined))
