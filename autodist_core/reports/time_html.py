"""The report on where a step's time goes as an HTML table, for notebooks. A `TimeTable` comes in, and HTML goes out.

Nodes are columns, and times are bars. As in the plan's HTML, colours are half transparent and nothing is loaded.
"""

from html import escape

from autodist_core.plan.html import CELL, TABLE, beside, line
from autodist_core.reports.step_times import COMPUTE, PARTS, UPDATE, TimeTable
from autodist_core.reports.time_text import MEANING, advice, bounds, headline, milliseconds

_WORKS, _WAITS = "rgba(45,125,225,.85)", "rgba(225,120,20,.7)"


def html_of(table: TimeTable) -> str:
    """Return the report as HTML, with a row for each part.

    >>> parts = dict.fromkeys(PARTS, 0.0) | {"compute": 0.009, "Python": 0.001}
    >>> html = html_of(TimeTable(0.01, {"<here>": parts}, 20, 64, 2, 0.0, 1))
    >>> "&lt;here&gt;" in html, html.count("<tr>"), "9.0 ms" in html
    (True, 8, True)
    """
    head = line("th", f"{CELL};font-weight:600", ["", *map(escape, table.parts), ""])
    body = "".join(line("td", CELL, _cells(table, part)) for part in PARTS)
    below = "".join(f"<li>{escape(each)}</li>" for each in (*bounds(table), *table.notes))
    return (
        '<div style="font-size:13px;line-height:1.4;color:inherit">'
        f'<div style="font-weight:600">{escape(headline(table))}</div>'
        f'<div style="overflow-x:auto"><table style="{TABLE}">'
        f"<thead>{head}</thead><tbody>{body}</tbody></table></div>"
        f'<ul style="margin:4px 0 0;padding-left:20px">{below}</ul>'
        f'<div style="margin-top:4px">change first: {escape(advice(table))}</div></div>'
    )


def _cells(table: TimeTable, part: str) -> list[str]:
    colour = _WORKS if part in (COMPUTE, UPDATE) else _WAITS
    times = (parts[part] for parts in table.parts.values())
    whole = round(table.step * 1e9)
    return [
        f'<span style="white-space:nowrap">{escape(part)}</span>',
        *(beside(milliseconds(each), [(round(each * 1e9), colour)], whole) for each in times),
        f'<span style="opacity:.8">{escape(MEANING[part])}</span>',
    ]
