"""What a training says of itself once, with its first step.

In: a captured training step, the session in which it runs, and its first batch. Out: the line of
`autodist_core/plan/headline.py`, and before the first step, whether it does not fit. `Steps` logs both.
"""

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

from autodist_core.errors import StrategyError
from autodist_core.forecast.needs import foretold
from autodist_core.plan.headline import headline
from autodist_core.runtime.batch_slices import BatchSlicer
from autodist_core.runtime.protocol import Session, SessionStep


def announcement(session: Session, step: SessionStep, arrays: Sequence[Any], total: int) -> str:
    """The line for a training step that has run once, on a batch of `total` examples.

    >>> from autodist_core.runtime.example import example_batch, example_session
    >>> from autodist_core.strategy import PS
    >>> session, train = example_session(PS())
    >>> outputs = train([example_batch(5)], total=5)
    >>> announcement(session, train, [example_batch(5)], 5)
    '5 per step = 1 x 3 + 1 x 2 on 1 machine; 3 parameters; 24 B per step'
    >>> session.close()
    """
    placement, item = session.placement, step.item
    trained = dict.fromkeys(gradient.variable for gradient in item.gradients)
    replicas = [replica.name for replica in placement.replicas]
    slices: list[int] = []
    if any(each.has_rows for each in item.inputs):
        slices = [stop - start for start, stop in BatchSlicer.bounds(arrays, total, len(replicas))]
    return headline(
        slices, replicas, [placement.plans[name] for name in trained],
        [0] * len(replicas) if placement.shares_memory else placement.memories,
        Counter(gradient.variable for gradient in item.gradients), step.graph.buckets if step.graph else 0,
        step.graph.factored if step.graph else {},
    )


def too_large(session: Session, step: SessionStep, arrays: Sequence[Any], total: int) -> str:
    """What a training step needs where that does not fit; empty if it fits, or if nobody can tell.

    A step that is small beside the memory is not looked at. Where the variables alone do not fit, a StrategyError says
    so: no batch is small enough.

    >>> from autodist_core.runtime.example import example_batch, example_session
    >>> from autodist_core.strategy import PS
    >>> session, train = example_session(PS())
    >>> too_large(session, train, [example_batch(5)], 5)
    ''
    >>> session.close()
    """
    batch = sum(prod(array.shape) * 8 for array in arrays if hasattr(array, "shape"))
    found = [each for each in foretold(step.item, session.placement, total, least=batch) if not each.fits]
    text = f"{'; '.join(map(str, found))}. plan(x, y) tells what would fit, if anything would."
    if any(each.weights + each.optimizer > (each.available or 0) for each in found):
        raise StrategyError(f"The variables do not fit, whatever the batch: {text}")
    return text if found else ""
