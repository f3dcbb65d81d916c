"""The plan: a compiled strategy as a table for people, before anything runs.

The last step of planning. It adds to the strategy's text what each variable weighs, what travels, and the notes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

from autodist_core.compiler import AllReducePlan, CompiledStrategy, PSPlan, VariablePlan
from autodist_core.graph_item import GraphItem, format_bytes
from autodist_core.strategy.wire import wire

__all__ = ["bytes_per_step", "table"]


def table(compiled: CompiledStrategy, graph_item: GraphItem | None = None) -> str:
    """The plan of ``compiled``; given the graph item, a gradient that a step applies several times counts as often.

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
    steps = [bytes_per_step(plan, compiled.replicas, max(counts[plan.variable.name], 1)) for plan in compiled.variables]
    rows = [
        (
            f"{plan.variable.name}",
            f"{plan.variable.type_text}{' sparse' if plan.variable.is_sparse else ''}",
            plan.text,
            format_bytes(plan.variable.byte_size),
            "rows/step" if step is None else f"{format_bytes(step)}/step",
            plan.note,
        )
        for plan, step in zip(compiled.variables, steps, strict=True)
    ]
    names, kinds, texts, sizes, travels = (max((len(row[column]) for row in rows), default=0) for column in range(5))
    lines = [
        f"  {name:{names}} : {kind:{kinds}}  {text:{texts}}  {size:>{sizes}}  {travel:>{travels}}  {note}".rstrip()
        for name, kind, text, size, travel, note in rows
    ]
    return "\n".join(
        [compiled.head, *lines, f"  {_total(compiled, steps)}", *(f"  note: {note}" for note in compiled.notes)]
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
