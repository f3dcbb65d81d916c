"""Find the random numbers that every replica draws for itself, and those that the update draws.

In: the index of a captured step. Out: its draws, in the order of the step. For a model with dropout::

    (Draw(path=("dropout/random_uniform",), op="StatelessRandomUniformV2", stream=Stream.INPUT),)
"""

from __future__ import annotations

from autodist_core.kernel.analysis.seeds import explicitly_seeded, seeded_alone
from autodist_core.step import naming
from autodist_core.step.draws import Draw
from autodist_core.step.index import StepIndex, analysis


@analysis
def drawn_by_replicas(step: StepIndex) -> tuple[Draw, ...]:
    """Return the draws of compute, in the order of the step, that are not the same as captured on every replica.

    Draws of the update are equal on all owners.

    >>> import tensorflow as tf
    >>> from autodist_core import GraphItem
    >>> with tf.Graph().as_default() as graph:
    ...     noise = tf.raw_ops.RandomStandardNormal(shape=[2], dtype=tf.float32, name="noise")
    >>> item = GraphItem((), outputs=("noise",), graph_bytes=graph.as_graph_def().SerializeToString())
    >>> [draw.path for draw in drawn_by_replicas(StepIndex(item))]
    [('noise',)]
    """
    outputs = [naming.node_of(name) for name in step.item.outputs]
    # A marker may be a part of the update.
    given = [source for marker in step.markers for source in step.sources(marker)]
    cone = step.cone([*given, *step.side_effects, *outputs], step.is_update)
    drawing = [name for name in step.in_order(cone.intersection(step.draws)) if not step.is_update(name)]
    alone = seeded_alone(step)
    return tuple(draw for name in drawing for draw in step.draws[name] if draw.path not in alone)


def drawn_explicitly(step: StepIndex) -> tuple[Draw, ...]:
    """Return those draws of the replicas whose seed is explicit. One device draws them once, for the whole batch.

    >>> from autodist_core import GraphItem
    >>> drawn_explicitly(StepIndex(GraphItem(())))
    ()
    """
    return tuple(draw for draw in drawn_by_replicas(step) if draw.path in explicitly_seeded(step))


def drawn_by_update(step: StepIndex) -> tuple[Draw, ...]:
    """Return the draws of the update, in the order of the step.

    >>> from autodist_core import GraphItem
    >>> drawn_by_update(StepIndex(GraphItem(())))
    ()
    """
    return tuple(draw for name in step.in_order(step.draws) if step.is_update(name) for draw in step.draws[name])
