"""The plan of a marked function.

In: a captured function, and the engine with its settings. Out: a `Plan`. `Function.plan` has an example. Training
functions that have run are placed together: the plan shows the function's own variables, where all of them leave these.
"""

from __future__ import annotations

from collections.abc import Iterator

from autodist_core.loops.engine import Engine
from autodist_core.loops.tracing import CapturedFunction
from autodist_core.plan import INEXACT, Plan
from autodist_core.reports import Explanation, drawing_notes, drawn_anew, inexact_notes, planned
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.strategy.written import written


def planned_call(engine: Engine, captured: CapturedFunction, examples: int) -> Plan:
    """The table of what is done with each variable, and the notes.

    `examples` is the number of examples of the batch, 0 if it is not known.
    """

    def more(strategy: CompiledStrategy) -> Iterator[str]:
        if len(strategy.replicas) > 1:
            yield from (*captured.notes, *captured.reported)
            yield from filter(None, [refusal])
            yield from drawing_notes(captured.item)

    settings = engine.training.settings
    state = engine.training.state
    item = captured.item if state is None else engine.admit(state, captured.item)
    refusal = engine.note_of(item)
    engine.note_updates(item)
    placed = engine.training.placed_with(item)
    strategy = engine.training.compile_strategy(placed)
    assumed = "" if item.gradients else "the function applies no gradients: every replica has a copy"
    if not item.gradients and item is not captured.item:
        assumed = "the function assigns variables that other functions train: their owners do this"
    return planned(
        item, strategy, settings.share_memory, more, written(settings.strategy), assumed, placed, examples,
        settings.resource_spec,
    )


def explained(engine: Engine, captured: CapturedFunction) -> Explanation:
    """The notes that explain other variables than one device's."""
    placed = engine.training.placed_with(captured.item)
    strategy = engine.training.compile_strategy(placed)
    anew = drawn_anew(captured.item)
    if len(strategy.replicas) == 1:
        return Explanation(tuple(anew), (), item=captured.item)
    own = inexact_notes(placed, strategy, engine.training.settings.share_memory)
    certain = [note for note in captured.notes if note.startswith(INEXACT)]
    # Replicas' random numbers are no rounding, and no defect.
    return Explanation(
        (*own, *certain, *drawing_notes(captured.item), *anew),
        tuple(note for note in captured.notes if note not in certain), captured.reported, captured.item,
    )
