"""Which operations of a traced graph are a tape's work.

TensorFlow remembers where each operation was created. What was created while gradients were computed is a gradient's
work, whatever scope it got: the gradients of a `tf.function`, a `tf.custom_gradient` or a recomputation have none.
"""

from __future__ import annotations

import os
from typing import Any

from autodist_core.capture.traced import Traced
from autodist_core.capture.traversal import sources
from autodist_core.seams.table import GRADIENT_TAPE, GRADIENTS_HELPER, GRAPH_IS_FOUND, TAPE_IS_SEEN
from autodist_core.step.draws import may_draw

# The functions of TensorFlow that compute gradients, and their files.
_COMPUTING_GRADIENTS = {
    seam.name: f"{seam.owner.rpartition('.')[2]}.py" for seam in (GRADIENT_TAPE, GRADIENTS_HELPER)
}
# Operations that run other graphs, and the attributes that name these.
_RUNNING = {"PartitionedCall": ("f",), "StatefulPartitionedCall": ("f",),
            "While": ("body", "cond"), "StatelessWhile": ("body", "cond"),
            "If": ("then_branch", "else_branch"), "StatelessIf": ("then_branch", "else_branch"),
            "Case": ("branches",), "StatelessCase": ("branches",)}


class Tape:
    """Which operations a tape made, and which compute with what it made."""

    def __init__(self) -> None:
        self._made: dict[Any, bool] = {}
        self._known: dict[Any, bool] = {}

    def made(self, operation: Any) -> bool:
        """Whether an operation was created while gradients were computed."""
        if key(operation) not in self._made:
            # A nested graph's argument is none, even if it was computing gradients that asked for it.
            self._made[key(operation)] = operation.type != "Placeholder" and any(
                os.path.basename(frame.filename) == _COMPUTING_GRADIENTS[frame.name]
                for frame in operation.traceback or () if frame.name in _COMPUTING_GRADIENTS
            )
        return self._made[key(operation)]

    def reaches(self, operation: Any) -> bool:
        """Whether an operation is a tape's work, runs a graph in which one works, or computes with what one made."""
        waiting = [operation]
        while waiting:
            current = waiting[-1]
            if key(current) in self._known:
                waiting.pop()
            elif self.made(current) or self.runs_one(current):
                self._known[key(current)] = True
            else:
                unknown = [source for source in sources(current) if key(source) not in self._known]
                if unknown:
                    waiting.extend(unknown)
                else:
                    self._known[key(current)] = any(self._known[key(source)] for source in sources(current))
        return self._known[key(operation)]

    def runs_one(self, operation: Any) -> bool:
        """Whether an operation runs a graph in which a tape works."""
        return any(self.reaches(inner) for graph in graphs_of(operation) for inner in graph.get_operations())


def draws(operation: Any) -> bool:
    """Whether an operation draws random numbers, or runs a graph in which one does."""
    return may_draw(operation.type) or any(
        draws(inner) for graph in graphs_of(operation) for inner in graph.get_operations()
    )


def key(operation: Any) -> tuple[int, str]:
    """What tells an operation from those of other graphs."""
    return id(operation.graph), operation.name


def graphs_of(operation: Any) -> list[Any]:
    """The graphs that an operation runs, as they were traced."""
    found = [operation.get_attr(attribute) for attribute in _RUNNING.get(operation.type, ())]
    names = [function.name for each in found for function in (each if isinstance(each, list) else [each])]
    return [graph_named(operation.graph, name) for name in names]


def graph_named(graph: Any, name: str) -> Any:
    """The graph of a function that a graph calls, as it was traced: with what it remembers of where it was created."""
    function = graph._get_function(name)
    if function is None:
        raise GRAPH_IS_FOUND.error(f"{name!r} is not found")
    return function.graph


def require_recognised(traced: Traced, tape: Tape) -> None:
    """Raise a SeamError if a tape differentiated a weighted loss and what it made is not recognised as a tape's.

    The loss is weighted by an operation that is created while the tape computes gradients.
    """
    unseen = [tensor.op.name for tensor in traced.weighting if not tape.made(tensor.op)]
    if unseen:
        raise TAPE_IS_SEEN.error(f"{unseen[0]!r} was created while gradients were computed, and does not say so")
    if traced.weighting and traced.gradients and not any(tape.reaches(each.values.op) for each in traced.gradients):
        raise TAPE_IS_SEEN.error(
            "the loss was differentiated, and none of the gradients that an optimizer gets comes from that"
        )
