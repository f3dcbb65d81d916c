"""What a plan says, as values: one row for each variable, the devices that hold it, and the notes.

The last step of planning. It adds to a compiled strategy what each variable weighs and what travels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy.compiled import CompiledStrategy, VariablePlan, allows_lead
from autodist_core.strategy.synchronizers import AllReducePlan, PSPlan
from autodist_core.strategy.wire import PLAIN, wire

MEMORY = "memory of all replicas"
"""What stands for a device where the replicas share one copy."""


@dataclass(frozen=True)
class Held:
    """The bytes of one variable on one device."""

    updated: int = 0
    """Of what is updated there."""
    copied: int = 0
    """Of a replica's copy that follows a server."""


@dataclass(frozen=True)
class Row:
    """What a plan says of one variable."""

    name: str
    kind: str
    """Type and shape, such as ``f32[784,128]``, and whether its gradient is sparse."""
    text: str
    """How it is synchronized."""
    size: int
    """The bytes of its value."""
    step: int | None
    """The bytes that travel in a step; ``None`` where the rows of a sparse gradient do."""
    held: Mapping[str, Held]
    """The devices that hold it."""
    note: str = ""


@dataclass(frozen=True)
class PlanTable:
    """A plan as a value; `text` and `html` beside this file are its two forms."""

    strategy: str
    replicas: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device that holds something, the replicas first."""
        found = [device for row in self.rows for device in row.held]
        return tuple(dict.fromkeys([*(name for name in self.replicas if name in found), *found]))


def plan_table(
    compiled: CompiledStrategy, graph_item: GraphItem | None = None, shared: bool = False,
    notes_besides: Iterable[str] = (),
) -> PlanTable:
    """What a plan says of ``compiled``.

    Given the graph item, a gradient that a step applies several times counts as often. ``shared`` says that the
    replicas compute on one copy of the weights, whatever the strategy has for each variable.

    >>> from autodist_core import ResourceSpec, StrategyCompiler, Variable
    >>> from autodist_core.strategy import PS
    >>> item, spec = GraphItem((Variable("dense/kernel", (7, 128), "float32"),)), ResourceSpec.local(cpus=2)
    >>> strategy = StrategyCompiler(item, spec).compile(PS().build(item, spec))
    >>> for device, held in plan_table(strategy).rows[0].held.items():
    ...     print(device, held)
    localhost:CPU:0 Held(updated=3584, copied=3584)
    localhost:CPU:1 Held(updated=0, copied=3584)
    """
    counts = Counter(gradient.variable for gradient in graph_item.gradients) if graph_item else Counter[str]()
    rows = tuple(
        Row(
            plan.variable.name,
            f"{plan.variable.type_text}{' sparse' if plan.variable.is_sparse else ''}",
            "in shared memory" if shared else plan.text,
            plan.variable.byte_size,
            0 if shared else bytes_per_step(plan, compiled.replicas, max(counts[plan.variable.name], 1)),
            {MEMORY: Held(plan.variable.byte_size)} if shared else _held(plan, compiled.replicas),
            plan.remark if shared else plan.note,
        )
        for plan in compiled.variables
    )
    return PlanTable(compiled.id, compiled.replicas, rows, (*notes(compiled), *notes_besides))


def _held(plan: VariablePlan, replicas: Sequence[str]) -> Mapping[str, Held]:
    """Which device holds how much of a variable."""
    size, updated = plan.variable.byte_size, Counter[str]()
    served = [(shape, each) for shape, each in plan.pieces if isinstance(each, PSPlan)]
    for shape, each in served:
        updated[each.destinations[0]] += prod(shape) * plan.variable.item_size
    if not served:
        return dict.fromkeys(replicas, Held(size))
    looked_up = plan.variable.is_sparse and not any(each.local_replication for _, each in served)
    followers = () if looked_up else replicas
    return {
        device: Held(updated[device], size if device in followers else 0)
        for device in dict.fromkeys([*followers, *updated])
    }


def bytes_per_step(plan: VariablePlan, replicas: Sequence[str], times: int = 1) -> int | None:
    """The bytes that leave one device for another in a step that applies the gradient ``times`` times.

    All replicas together: a ring over N replicas moves each byte of the gradient 2(N-1) times; to and from a parameter
    server the gradient and the value travel once for each replica on another device. ``None`` for a sparse variable:
    the rows that travel depend on the batch.
    """
    if len(replicas) == 1 and isinstance(plan.synchronizer, AllReducePlan):
        return 0
    if plan.variable.is_sparse:
        return None
    total = 0
    for shape, synchronizer in plan.pieces:
        if isinstance(synchronizer, PSPlan):
            elsewhere = sum(replica != synchronizer.destinations[0] for replica in replicas)
            total += 2 * elsewhere * prod(shape) * plan.variable.item_size
        else:
            total += 2 * (len(replicas) - 1) * wire(synchronizer, shape, plan.variable.dtype).bytes
    return total * times


def notes(strategy: CompiledStrategy) -> tuple[str, ...]:
    """What a person should know about the whole: the strategy's own words, and what is not exact or has no effect.

    >>> from autodist_core import ResourceSpec, StrategyCompiler, Variable
    >>> from autodist_core.strategy import PS
    >>> item, spec = GraphItem((Variable("dense/kernel", (7, 128), "float32"),)), ResourceSpec.local(cpus=2)
    >>> notes(StrategyCompiler(item, spec).compile(PS(sync=False).build(item, spec)))
    ('not exact: asynchronous updates (sync=False) use gradients of older weights',)
    """
    return (*strategy.remarks, *_notes(strategy))


def _notes(strategy: CompiledStrategy) -> Iterator[str]:
    if len(strategy.replicas) == 1:
        yield "single replica: it computes the whole batch, and nothing is combined"
        return
    lead = strategy.allowed_lead
    pieces = [(plan.variable.name, synchronizer) for plan in strategy.variables for _, synchronizer in plan.pieces]
    in_step = [name for name, synchronizer in pieces if not allows_lead(synchronizer)]
    if lead and strategy.in_step_reason:
        yield f"exact after all: {strategy.in_step_reason}, so the replicas keep in step"
    elif lead and lead.steps is None:
        yield "not exact: asynchronous updates (sync=False) use gradients of older weights"
    elif lead:
        yield f"not exact: staleness={lead.steps} lets a replica compute on weights up to {lead.steps} steps old"
    elif len(in_step) < len(pieces):
        yield f"staleness and sync=False have no effect: {in_step[0]} keeps the replicas in step"
    for name, sent in _sent_by_compressors(strategy.variables).items():
        if sent == {PLAIN}:
            yield f"{name} has no effect: what it would send is no smaller"
        else:
            yield f"not exact: {name} is lossy"


def _sent_by_compressors(plans: Iterable[VariablePlan]) -> dict[str, set[str]]:
    """In which forms gradients travel where a compressor was asked for; rows of sparse ones travel as they are."""
    found: dict[str, set[str]] = {}
    for plan in plans:
        for shape, each in plan.pieces:
            if isinstance(each, AllReducePlan) and each.compressor != "NoneCompressor":
                form = PLAIN if plan.variable.is_sparse else wire(each, shape, plan.variable.dtype).form
                found.setdefault(each.compressor, set()).add(form)
    return found
