"""The form of a plan as Markdown, for TensorBoard. A `PlanTable` comes in, and text goes out."""

from collections.abc import Iterable, Sequence

from autodist_core.plan.table import PlanTable
from autodist_core.plan.text import head_text, step_text, total_text
from autodist_core.step.graph_item import format_bytes


def markdown_of(plan: PlanTable) -> str:
    """Return a plan as Markdown: the strategy, a table of the variables, the total, and the notes.

    >>> from autodist_core.plan.table import DeviceBytes, Row
    >>> row = Row("dense/kernel", "f32[7,128]", "ps(a:CPU:0)", 3584, 7168, {"a:CPU:0": DeviceBytes(3584)})
    >>> print(markdown_of(PlanTable("3f9c21", ("a:GPU:0", "b:GPU:0"), (row,), ("it is the only one",))))
    strategy 3f9c21 @ 2 replicas: `a:GPU:0`, `b:GPU:0`
    <BLANKLINE>
    | variable | type | synchronized by | size | travels |
    |---|---|---|---|---|
    | `dense/kernel` | `f32[7,128]` | `ps(a:CPU:0)` | 3.5 KiB | 7.0 KiB/step |
    <BLANKLINE>
    total: 1 variable, 3.5 KiB; 7.0 KiB travel between devices per step
    <BLANKLINE>
    - it is the only one
    """
    titles = ("variable", "type", "synchronized by", "size", "travels", "note")
    rows = [
        (code(row.name), code(row.kind), code(row.text), format_bytes(row.size), step_text(row.step), cell(row.note))
        for row in plan.rows
    ]
    columns = len(titles) - (not any(row.note for row in plan.rows))
    table = markdown_table(titles[:columns], [row[:columns] for row in rows])
    replicas = ", ".join(map(code, plan.replicas))
    notes = "\n".join(f"- {note}" for note in (*plan.memory, *plan.notes))
    return "\n\n".join(filter(None, [f"{head_text(plan)}: {replicas}", table, total_text(plan), notes]))


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown.

    >>> print(markdown_table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    first, *others = (f"| {' | '.join(row)} |" for row in (titles, *rows))
    return "\n".join([first, "|" + "---|" * len(titles), *others])


def code(text: str) -> str:
    """Return a name as code. In code, Markdown would show an entity as it is written, so a bar becomes a slash.

    >>> code("ps(a|b)")
    '`ps(a/b)`'
    """
    return f"`{text.replace('|', '/')}`"


def cell(text: str) -> str:
    """Return text that does not end a cell.

    >>> cell("a|b")
    'a&#124;b'
    """
    return text.replace("|", "&#124;")
