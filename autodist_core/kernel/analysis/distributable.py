"""Refuse a captured step that cannot be distributed; the error lists all reasons.

In: the index of a captured step. Out: nothing, or a `CaptureError`::

    this training step cannot be distributed: trainable variable 'w' is written outside an optimizer; ...
"""

from __future__ import annotations

from autodist_core.errors import CaptureError
from autodist_core.step.index import StepIndex


def require_distributable(step: StepIndex) -> None:
    """Raise a `CaptureError` that lists every reason why a captured step cannot be distributed.

    >>> from autodist_core import GraphItem
    >>> require_distributable(StepIndex(GraphItem(())))
    """
    problems = [
        f"trainable variable {name!r} is written outside an optimizer; let optimizer.apply do it, or make it "
        "non-trainable (where a layer's call writes it, as SpectralNormalization's does: freeze or replace that layer)"
        for name in sorted(step.written_by_compute & set(step.trained))
    ]
    problems += [
        f"optimizer variable {name!r} is written outside optimizer.apply; use a learning rate schedule, or change it "
        "between steps, in a callback"
        for name in sorted(step.written_by_compute) if step.variables[name].kind == "optimizer"
    ]
    for name, occurrences in step.trained.items():
        if len(set(occurrences)) != len(occurrences):
            problems.append(f"variable {name!r} gets two gradients in one apply")
    if problems:
        raise CaptureError("this training step cannot be distributed: " + "; ".join(problems) + ".")
