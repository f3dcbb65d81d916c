"""Compare two trainings from one state: on one device, and over all replicas.

In: functions that train both ways, and the variables. Out: a table of differences, or a ValueError. The variables get
their state back. `verify` of a model and of a marked function call this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autodist_core.errors import amount
from autodist_core.reports.reasons import reached
from autodist_core.reports.rounding import FACTOR, difference, last_bits_changed, made_by_change
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex
from autodist_core.training import Entry

TOLERANCE = {"float64": 1e-12, "float32": 1e-3, "float16": 5e-2, "bfloat16": 2e-1}
_COMPARED = ("model", "optimizer", "seed")
"""The kinds of variables that the table compares. The variables of metrics are not compared, but they are restored."""
_UNEXPLAINED = (
    "Nothing in the plan explains it. If no layer or loss of the model mixes the examples of a batch (a mean over the "
    "batch axis, say) or takes rows by their position, it is a defect worth reporting."
)


def compare(
    entries: Sequence[Entry], on_one_device: Callable[[], object], over_replicas: Callable[[], object], steps: int,
    explanation: Callable[[], Explanation], computes_in: Callable[[], str],
) -> str:
    """Train both ways, restore the variables, and return the table of differences.

    The last line of the table is the verdict. If variables differ by more than rounding and no note of the plan that
    can reach them says why, a ValueError names them. `computes_in` gives the coarsest float type in which the
    step computes.

    >>> import tensorflow as tf
    >>> from autodist_core.step.graph_item import Variable
    >>> weight = tf.Variable(1.0)
    >>> entries = [Entry(Variable("weight", (), "float32"), weight)]
    >>> twice = lambda: weight.assign(2 * weight)
    >>> exact = lambda: Explanation((), ())
    >>> print(compare(entries, twice, twice, 1, exact, lambda: "float32"))  # doctest: +NORMALIZE_WHITESPACE
    1 step on one device and over all replicas; max|a-b| / max|a|:
      weight  0.0e+00
    verdict: equal to one device, up to rounding,
    in the 1 variable of the table; metrics and results are not compared
    """
    start = values_of(entries)

    def trained(train: Callable[[], object], begin: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            restore(entries, begin)
            train()
            return values_of(entries)
        finally:
            restore(entries, start)

    alone, together = trained(on_one_device, start), trained(over_replicas, start)
    _require_finite(alone, steps)
    explained = explanation()
    found = [
        Difference(each.name, each.dtype, difference(alone[each.name], together[each.name]))
        for each in (entry.spec for entry in entries)
        if each.kind in _COMPARED and each.dtype in TOLERANCE and alone[each.name].size
    ]
    rounding: dict[str, float] = {}
    kind = ""
    if any(each.is_wrong and not explained.by(each.name, steps) for each in found):
        weights = {entry.spec.name: start[entry.spec.name] for entry in entries if entry.spec.kind == "model"}
        kind = computes_in()
        changed = start | last_bits_changed(weights, kind)
        states = start, changed, alone, trained(on_one_device, changed)
        rounding = {each.name: made_by_change(*(state[each.name] for state in states)) for each in found}
    return _table(found, rounding, kind, steps, explained)


def require_steps(steps: object) -> None:
    """Raise a ValueError unless this is a number of steps.

    >>> require_steps(0)
    Traceback (most recent call last):
    ValueError: verify(steps=0): expected a whole number of steps, at least 1.
    """
    if hasattr(steps, "shape") or isinstance(steps, list | tuple):
        raise ValueError(
            f"verify(x, y, ...): the third argument is the number of steps, at least 1. Received a "
            f"{type(steps).__name__}. Weights of the examples have a name: verify(x, y, sample_weight=...)."
        )
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"verify(steps={steps!r}): expected a whole number of steps, at least 1.")


def values_of(entries: Sequence[Entry]) -> dict[str, np.ndarray]:
    """The current values of variables, by name.

    >>> import tensorflow as tf
    >>> from autodist_core.step.graph_item import Variable
    >>> values_of([Entry(Variable("weight", (2,), "float32"), tf.Variable([1.0, 2.0]))])
    {'weight': array([1., 2.], dtype=float32)}
    """
    return {entry.spec.name: np.array(entry.tf_variable.numpy()) for entry in entries}


def restore(entries: Sequence[Entry], values: Mapping[str, np.ndarray]) -> None:
    """Give variables these values.

    >>> import tensorflow as tf
    >>> from autodist_core.step.graph_item import Variable
    >>> weight = tf.Variable(1.0)
    >>> restore([Entry(Variable("weight", (), "float32"), weight)], {"weight": np.float32(3.0)})
    >>> float(weight)
    3.0
    """
    for entry in entries:
        entry.tf_variable.assign(values[entry.spec.name])


@dataclass(frozen=True)
class Explanation:
    """The plan's reasons for other numbers than one device's.

    >>> Explanation(inexact=("not exact: HorovodCompressor is lossy",), possible=()).inexact
    ('not exact: HorovodCompressor is lossy',)
    """

    inexact: tuple[str, ...]
    """Reasons that are certain."""
    possible: tuple[str, ...]
    """Reasons that depend on what the model's losses and steps compute."""
    reported: tuple[str, ...] = ()
    """Notes on metrics and results, which the table does not compare. They are no reasons for other variables."""
    item: GraphItem | None = None
    """The captured step; None if every reason is one for all variables."""

    def by(self, variable: str, steps: int) -> list[int]:
        """The numbers of the certain reasons, from 1 on, that can reach a variable in so many steps."""
        return [
            number for number, note in enumerate(self.inexact, 1)
            if self.item is None or variable in reached(StepIndex.of(self.item), note, steps)
        ]


@dataclass(frozen=True)
class Difference:
    """How far one variable is apart after training both ways.

    >>> Difference("kernel", "float64", 1e-9).is_wrong, Difference("kernel", "float32", 1e-9).is_wrong
    (True, False)
    """

    name: str
    dtype: str
    size: float

    @property
    def is_wrong(self) -> bool:
        """Whether it is more than the rounding of a variable that is well determined."""
        return not self.size <= TOLERANCE[self.dtype]


def _require_finite(alone: dict[str, np.ndarray], steps: int) -> None:
    lost = [name for name, value in alone.items() if value.dtype.kind == "f" and not np.isfinite(value).all()]
    if lost:
        raise ValueError(
            f"on one device {', '.join(lost[:3])} {'is' if len(lost) == 1 else 'are'} not finite after "
            f"{amount(steps, 'step')}, so there is nothing to compare. Verify with data and a learning rate with which "
            "the plain model trains."
        )


def _table(found: list[Difference], rounding: dict[str, float], kind: str, steps: int, explanation: Explanation) -> str:
    """The table, the plan's notes and the verdict.

    A variable whose values on one device are rounding alone is marked, and one that differs has the numbers of the
    notes that can reach it. `kind` is the coarsest type of the step.
    """
    lines = [f"{amount(steps, 'step')} on one device and over all replicas; max|a-b| / max|a|:"]
    width = max((len(each.name) for each in found), default=0)
    wrong, unexplained = 0, []
    for each in found:
        line = f"  {each.name:{width}}  {each.size:.1e}"
        by = explanation.by(each.name, steps) if each.is_wrong else []
        if each.is_wrong and each.size <= FACTOR * rounding.get(each.name, 0.0):
            line += f"  rounding: on one device {rounding[each.name]:.1e}, if weights differ in their last bit"
            line += "" if kind in ("float64", each.dtype) else f" of {kind}"
        elif by:
            wrong += 1
            line += f"  note {', '.join(map(str, by))}"
        elif each.is_wrong:
            unexplained.append(f"{each.name} ({each.size:.1e}, {each.dtype} allows {TOLERANCE[each.dtype]:.0e})")
        lines.append(line)
    noted = (*explanation.inexact, *explanation.reported)
    lines += [f"  note {number}: {note}" for number, note in enumerate(noted, 1)]
    if unexplained:
        said = "; ".join(explanation.possible)
        raise ValueError(
            f"training over replicas differs from one device in {'; '.join(unexplained)}. "
            + (f"The plan says: {said}." if said else _UNEXPLAINED)
            + (f" No note explains it: {'; '.join(explanation.inexact)}." if explanation.inexact else "")
        )
    return "\n".join([*lines, f"verdict: {_verdict(wrong, len(found), bool(noted))}"])


def _verdict(wrong: int, compared: int, noted: bool) -> str:
    variables, hold = amount(compared, "variable"), ": the notes above hold for them" if noted else ""
    if wrong:
        return f"accepted: {wrong} of {variables} differ by more than rounding, and the notes above say why"
    where = f"up to rounding, in the {variables} of the table"
    return f"equal to one device, {where}; metrics and results are not compared{hold}"
