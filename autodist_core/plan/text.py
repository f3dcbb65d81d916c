"""The form of a plan as text, which prints and which tests compare. A `PlanTable` comes in, and text goes out."""

from autodist_core.errors import amount
from autodist_core.plan.table import PlanTable
from autodist_core.step.graph_item import format_bytes


def text_of(plan: PlanTable) -> str:
    """Return a plan as text: a line for the strategy, each replica and variable, the total, each memory and note.

    >>> from autodist_core.plan.table import DeviceBytes, Row
    >>> row = Row("dense/kernel", "f32[7,128]", "ps(a:CPU:0)", 3584, 7168, {"a:CPU:0": DeviceBytes(3584)}, "its own")
    >>> print(text_of(PlanTable("3f9c21", ("a:GPU:0", "b:GPU:0"), (row,), ("it is the only one",))))
    strategy 3f9c21 @ 2 replicas
      replica a:GPU:0
      replica b:GPU:0
      dense/kernel : f32[7,128]  ps(a:CPU:0)  3.5 KiB  7.0 KiB/step  its own
      total: 1 variable, 3.5 KiB; 7.0 KiB travel between devices per step
      note: it is the only one
    """
    rows = cells(plan)
    names, kinds, texts, sizes, travels = (max((len(row[column]) for row in rows), default=0) for column in range(5))
    lines = [
        f"  {name:{names}} : {kind:{kinds}}  {text:{texts}}  {size:>{sizes}}  {travel:>{travels}}  {note}".rstrip()
        for name, kind, text, size, travel, note in rows
    ]
    replicas = [f"  replica {replica}" for replica in plan.replicas]
    notes = [f"  note: {note}" for note in plan.notes]
    memory = [f"  {each}" for each in plan.memory]
    return "\n".join([head_text(plan), *replicas, *lines, f"  {total_text(plan)}", *memory, *notes])


def cells(plan: PlanTable) -> list[tuple[str, ...]]:
    """Return the texts of each variable's row.

    >>> cells(PlanTable("3f9c21", ("a:GPU:0",), ()))
    []
    """
    return [(row.name, row.kind, row.text, format_bytes(row.size), step_text(row.step), row.note) for row in plan.rows]


def head_text(plan: PlanTable) -> str:
    """Return the line with the strategy's id and name, and the number of replicas.

    >>> head_text(PlanTable("3f9c21", ("a:GPU:0",), ()))
    'strategy 3f9c21 @ 1 replica'
    >>> head_text(PlanTable("3f9c21", ("a:GPU:0", "b:GPU:0"), (), name="AllReduce(chunk_size=1)"))
    'strategy 3f9c21, AllReduce(chunk_size=1) @ 2 replicas'
    """
    count = len(plan.replicas)
    name = f", {plan.name}" if plan.name else ""
    return f"strategy {plan.strategy}{name} @ {amount(count, 'replica')}"


def step_text(step: int | None) -> str:
    """Return the bytes that travel for a variable in a step, as text.

    >>> step_text(7168), step_text(None)
    ('7.0 KiB/step', 'rows/step')
    """
    return "rows/step" if step is None else f"{format_bytes(step)}/step"


def total_text(plan: PlanTable) -> str:
    """Return the line with the sums over all variables.

    >>> total_text(PlanTable("3f9c21", ("a:GPU:0",), ()))
    'total: 0 variables, 0 B; 0 B travel between devices per step'
    """
    steps = [row.step for row in plan.rows]
    size = format_bytes(sum(row.size for row in plan.rows))
    travel = format_bytes(sum(step for step in steps if step is not None))
    sparse, count = steps.count(None), len(steps)
    rows = f", and the rows of {amount(sparse, 'sparse variable')}" if sparse else ""
    return f"total: {amount(count, 'variable')}, {size}; {travel} travel between devices per step{rows}"
