"""Which random numbers every replica draws for itself."""

from __future__ import annotations

from autodist_core.step import naming
from autodist_core.step.draws import Draw
from autodist_core.step.index import StepIndex, analysis


@analysis
def drawn_by_replicas(step: StepIndex) -> tuple[Draw, ...]:
    """What compute draws, in the order of the step; not what an update draws, which is alike on all its owners."""
    written = [
        name for name, touched in step.touches.items()
        if not step.is_update(name) and any(touch.writes for touch in touched)
    ]
    targets = [name for name in step.item.targets if not step.is_update(name)]
    outputs = [naming.node_of(name) for name in step.item.outputs]
    cone = step.cone([*step.markers, *written, *targets, *outputs], step.is_update)
    drawing = [name for name in step.in_order(cone.intersection(step.draws)) if not step.is_update(name)]
    return tuple(draw for name in drawing for draw in step.draws[name])
