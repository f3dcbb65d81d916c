"""Let what a replica adds to a variable count by the replica's share of the batch.

In: a captured graph, and for each addition the input that is added and a power of the share. Out: the same graph with a
factor before each of these inputs. For a metric that adds the mean loss of each batch to a total, which the replicas'
totals are added up for::

    AssignAddVariableOp(total, loss)  ->  AssignAddVariableOp(total, loss * examples / all examples)
"""

from collections.abc import Mapping

import tensorflow as tf

from autodist_core.capture.traced import Counted
from autodist_core.step.editor import Editor
from autodist_core.step.naming import UPDATE


def count_by_share(graph: Editor, counted: Mapping[str, Counted], examples: str, total: str) -> Editor:
    """Return the graph with the factors; `examples` and `total` are the placeholders of the two numbers of examples.

    >>> graph = Editor()
    >>> names = [graph.add("Placeholder", name, dtype=tf.float64) for name in ("examples", "all", "value")]
    >>> _ = graph.add("Neg", "negative", ["value"], T=tf.float64)
    >>> changed = count_by_share(graph, {"negative": Counted(0, tf.float64, 1)}, "examples", "all")
    >>> [(node.name, *node.input) for node in changed][3:]
    [('negative/share', 'examples', 'all'), ('negative/by_share', 'value', 'negative/share'), ...]
    """
    if not counted:
        return graph
    changed = graph.empty()
    for node in graph:
        inputs = list(node.input)
        how = counted.get(node.name)
        if how is not None and how.power == 0:
            new = (_repeated if how.repeated else _multiplied)(changed, node.name, inputs[how.position], how)
            inputs[how.position] = new[-1]
            for name in new if UPDATE in node.attr else ():
                changed.mark_update(name, node.attr[UPDATE].i)
        elif how is not None:
            factor = (examples, total) if how.power > 0 else (total, examples)
            if how.times != 1:
                times = changed.constant(f"{node.name}/times", how.times, tf.float64)
                factor = (changed.add("Mul", f"{node.name}/of_times", [factor[0], times], T=tf.float64), factor[1])
            once = share = changed.add("RealDiv", f"{node.name}/share", factor, T=tf.float64)
            for power in range(2, abs(how.power) + 1):
                share = changed.add("Mul", f"{node.name}/share_{power}", [share, once], T=tf.float64)
            if how.dtype != tf.float64:
                share = changed.add("Cast", f"{node.name}/cast", [share], SrcT=tf.float64, DstT=how.dtype)
            added = [inputs[how.position], share]
            inputs[how.position] = changed.add("Mul", f"{node.name}/by_share", added, T=how.dtype)
        changed.copy_captured(node, node.name, inputs)
    return changed


def _multiplied(graph: Editor, name: str, value: str, how: Counted) -> list[str]:
    """Add the nodes of a value times a number; return their names, the result's last."""
    times = graph.constant(f"{name}/times", how.times, how.dtype)
    return [times, graph.add("Mul", f"{name}/by_times", [value, times], T=how.dtype)]


def _repeated(graph: Editor, name: str, value: str, how: Counted) -> list[str]:
    """Add the nodes of a value whose rows come several times; return their names, the result's last."""
    axis = graph.constant(f"{name}/axis", 0, tf.int32)
    types = {"T": how.dtype, "Tidx": tf.int32, "N": how.times}
    return [axis, graph.add("ConcatV2", f"{name}/repeated", [value] * how.times + [axis], **types)]
