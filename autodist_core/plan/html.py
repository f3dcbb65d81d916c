"""The form of a plan as an HTML table, for notebooks. A `PlanTable` comes in, and HTML goes out.

The table has the columns of the text, and the notes stand below it. Text has the colour of the page. The HTML loads
nothing, and all text in it is escaped.
"""

from collections.abc import Iterable
from html import escape

from autodist_core.plan.table import PlanTable
from autodist_core.plan.text import cells, head_text, total_text

_TITLES = "variable", "type", "synchronized by", "size", "travels", "note"
_CELL = "padding:3px 10px;text-align:left;vertical-align:top;border-bottom:1px solid rgba(128,128,128,.35)"


def html_of(plan: PlanTable) -> str:
    """Return a plan as HTML, with a row for each variable.

    >>> from autodist_core.plan.table import DeviceBytes, Row
    >>> row = Row("dense/<kernel>", "f32[7,128]", "ps(a:CPU:0)", 3584, 7168, {"a:CPU:0": DeviceBytes(3584)})
    >>> html = html_of(PlanTable("3f9c21", ("a:GPU:0",), (row,), ("it is the only one",)))
    >>> "dense/&lt;kernel&gt;" in html, "<li>it is the only one</li>" in html, html.count("<th")
    (True, True, 6)
    """
    rows = "".join(_row("td", each) for each in cells(plan))
    below = "".join(f"<div>{escape(text)}</div>" for text in (total_text(plan), *map(str, plan.memory)))
    notes = "".join(f"<li>{escape(note)}</li>" for note in plan.notes)
    return (
        f'<div style="line-height:1.4;color:inherit"><b>{escape(head_text(plan))}</b><div style="overflow-x:auto">'
        f'<table style="border-collapse:collapse;color:inherit">{_row("th", _TITLES)}{rows}</table></div>'
        f"{below}<ul>{notes}</ul></div>"
    )


def _row(tag: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f'<{tag} style="{_CELL}">{escape(text)}</{tag}>' for text in texts) + "</tr>"
