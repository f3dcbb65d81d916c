"""How the replicas' results of a marked function become the results for the whole batch.

In: the outputs of a trace, and their states (see `autodist_core.capture.batch_axis`). Out: a word for each output.

===================================================  =========================================================
output                                               for the whole batch
===================================================  =========================================================
one row for each example, along the first axis       ``rows``: the replicas' rows, one behind the other
a sum over the examples                              ``sum``
a mean over the examples                             ``mean``, weighted by the replicas' numbers of examples
a maximum or minimum over the examples               ``max`` or ``min``
equal on all replicas                                ``same``
made of gradients, or of updated variables           ``same``: it is made of the whole batch's gradients
a float that is one number, and none of these        ``mean``; the plan says that it is not exact
===================================================  =========================================================

Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from autodist_core.capture.batch_axis import ALIKE, LARGEST, ROWS, SMALLEST, SUM, State
from autodist_core.errors import CaptureError

_OF_DEGREE = {0: "mean", 1: "sum"}
_REMEDY = (
    "Return a value for each example (the examples along the first axis), or a sum, a mean, a maximum or a minimum "
    "over the examples; a float that is one number counts as a mean."
)


def joins(outputs: Sequence[Any], states: Sequence[State], made_of_gradients: Collection[str]) -> tuple[str, ...]:
    """The word for each output; a CaptureError for an output that no word fits."""
    return tuple(
        "same" if output.op.name in made_of_gradients else _join(index, output, state)
        for index, (output, state) in enumerate(zip(outputs, states, strict=True))
    )


def _join(index: int, output: Any, state: State) -> str:
    number = output.dtype.is_floating or output.dtype.is_complex
    if state.kind == ALIKE:
        return "same"
    if state.kind == ROWS and state.axes == (0,) and state.outer == 1 and not (state.degree or state.stride):
        return "rows"
    if state.kind == SUM and state.degree in _OF_DEGREE and (number or state.degree == 1):
        return _OF_DEGREE[state.degree]
    if state.kind in (LARGEST, SMALLEST):
        return "max" if state.kind == LARGEST else "min"
    if number and output.shape.rank == 0:
        return "mean"
    made = output.op.inputs[0].op if output.op.inputs else output.op
    where = f" along axis {state.axis}" if state.kind == ROWS else ""
    raise CaptureError(
        f"result {index} of the function, a {output.dtype.name} of shape {output.shape} made by {made.name!r} "
        f"({made.type}){', with the examples' + where if where else ''}: it is not known how the replicas' values of "
        f"it become one. {_REMEDY}"
    )
