"""The plan: a compiled strategy as a table for people, before anything runs.

The last step of planning. It adds to the strategy's text what each variable weighs, what travels, and the notes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import prod

from autodist_core.step.graph_item import GraphItem, format_bytes
from autodist_core.strategy.compiler import AllReducePlan, CompiledStrategy, PSPlan, VariablePlan, drifting, is_loose
from autodist_core.strategy.wire import PLAIN, wire

__all__ = ["bytes_per_step", "notes", "table"]


def table(compiled: CompiledStrategy, graph_item: GraphItem | None = None, shared: bool = False) -> str:
    """The plan of ``compiled``; given the graph item, a gradient that a step applies several times counts as often.

    ``shared`` says that the replicas compute on one copy of the weights, whatever the strategy has for each variable.

    >>> from autodist_core import ResourceSpec, StrategyCompiler, Variable
    >>> from autodist_core.strategy import Parallax
    >>> table_variable = Variable("embed/table", (50, 4), "float32", is_sparse=True)
    >>> item = GraphItem((Variable("dense/kernel", (7, 128), "float32"), table_variable))
    >>> spec = ResourceSpec.local(cpus=2)
    >>> strategy = Parallax().build(item, spec)
    >>> print(table(StrategyCompiler(item, spec).compile(strategy)))
    strategy ... @ 2 replicas
      replica localhost:CPU:0
      replica localhost:CPU:1
      dense/kernel : f32[7,128]        all_reduce(group=0)  3.5 KiB  7.0 KiB/step
      embed/table  : f32[50,4] sparse  ps(localhost:CPU:0)    800 B     rows/step
      total: 2 variables, 4.3 KiB; 7.0 KiB travel between devices per step, and the rows of 1 sparse variable
    """
    counts = Counter(gradient.variable for gradient in graph_item.gradients) if graph_item else Counter[str]()
    steps = [
        0 if shared else bytes_per_step(plan, compiled.replicas, max(counts[plan.variable.name], 1))
        for plan in compiled.variables
    ]
    rows = [
        (
            f"{plan.variable.name}",
            f"{plan.variable.type_text}{' sparse' if plan.variable.is_sparse else ''}",
            "in shared memory" if shared else plan.text,
            format_bytes(plan.variable.byte_size),
            "rows/step" if step is None else f"{format_bytes(step)}/step",
            plan.remark if shared else plan.note,
        )
        for plan, step in zip(compiled.variables, steps, strict=True)
    ]
    names, kinds, texts, sizes, travels = (max((len(row[column]) for row in rows), default=0) for column in range(5))
    lines = [
        f"  {name:{names}} : {kind:{kinds}}  {text:{texts}}  {size:>{sizes}}  {travel:>{travels}}  {note}".rstrip()
        for name, kind, text, size, travel, note in rows
    ]
    return "\n".join(
        [compiled.head, *lines, f"  {_total(compiled, steps)}", *(f"  note: {note}" for note in notes(compiled))]
    )


def _total(compiled: CompiledStrategy, steps: Sequence[int | None]) -> str:
    size = format_bytes(sum(plan.variable.byte_size for plan in compiled.variables))
    travel = format_bytes(sum(step for step in steps if step is not None))
    sparse = steps.count(None)
    rows = f", and the rows of {sparse} sparse variable{'' if sparse == 1 else 's'}" if sparse else ""
    count = len(steps)
    return f"total: {count} variable{'' if count == 1 else 's'}, {size}; {travel} travel between devices per step{rows}"


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
    apart = drifting(strategy)
    in_step = [p.variable.name for p in strategy.variables for _, each in p.pieces if not is_loose(each)]
    if apart and strategy.held:
        yield f"exact after all: {strategy.held}, so the replicas keep in step"
    elif apart and apart.staleness is None:
        yield "not exact: asynchronous updates (sync=False) use gradients of older weights"
    elif apart:
        steps = apart.staleness
        yield f"not exact: staleness={steps} lets a replica compute on weights up to {steps} steps old"
    elif any(is_loose(each) for plan in strategy.variables for _, each in plan.pieces):
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
