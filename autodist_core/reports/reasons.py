"""Reasons for other numbers than one device's, and the variables that they can reach.

In: a note of the plan with the operations that it is about, and a captured step. Out: the variables whose values may
differ for this reason. For a model with two heads, of which one has a dropout::

    draw -> Mul -> loss of the head -> gradient of the head's kernel -> kernel        reached
    the other head's kernel                                                          not reached, in one step

A note on a whole training, such as on a lossy compressor, has no operations and reaches every variable.
"""

from __future__ import annotations

from collections.abc import Iterable

from autodist_core.step.index import StepIndex
from autodist_core.step.op_types import WITHOUT_VALUES


class Reason(str):
    """A note of the plan, with the names of the operations from which the difference comes.

    >>> reason = Reason.of("not exact: Mean (middle) ...", ["middle"])
    >>> reason, reason.nodes
    ('not exact: Mean (middle) ...', frozenset({'middle'}))
    """

    __slots__ = ("nodes",)
    nodes: frozenset[str]

    @classmethod
    def of(cls, note: str, nodes: Iterable[str]) -> Reason:
        """The note, with these operations."""
        reason = cls(note)
        reason.nodes = frozenset(nodes)
        return reason


def reached(step: StepIndex, note: str, steps: int) -> frozenset[str]:
    """The variables of a captured step that may differ for the reason of a note, after so many steps.

    >>> from autodist_core.capture.example import example_step
    >>> step = StepIndex.of(example_step())
    >>> sorted(reached(step, Reason.of("...", ["loss"]), 1)), "total" in reached(step, "not exact: a compressor", 1)
    (['kernel', 'velocity'], True)
    """
    nodes = note.nodes if isinstance(note, Reason) else frozenset()
    if not nodes or not nodes <= step.nodes.keys():
        return frozenset(step.variables)
    # The gradients of what an operation is made of go back through it, whatever its value.
    before = step.touched_by(step.cone(nodes))
    starts = nodes | {marker for marker, gradient in step.markers.items() if gradient.variable in before}
    changed: set[str] = set()
    for _ in range(steps):
        hit = set(starts)
        for node in step.graph.node:
            if node.op not in WITHOUT_VALUES and (
                node.name in hit or not hit.isdisjoint(step.sources(node.name))
                or not changed.isdisjoint(step.touched_by([node.name]))
            ):
                hit.add(node.name)
                changed |= step.written_by([node.name])
    return frozenset(changed)
