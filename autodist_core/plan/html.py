"""The form of a plan as an HTML table, for notebooks. A `PlanTable` comes in, and HTML goes out.

Devices are columns, bytes are bars, and the notes stand below the table. Colours are half transparent, and text has the
colour of the page, so the table is readable on light and on dark pages. The HTML loads nothing, and all text in it is
escaped.
"""

from collections.abc import Sequence
from html import escape

from autodist_core.plan.table import DeviceBytes, PlanTable, Row
from autodist_core.plan.text import head_text, step_text, total_text
from autodist_core.step.graph_item import format_bytes

_LINE = "border-bottom:1px solid rgba(128,128,128,.35)"
TABLE = "border-collapse:collapse;color:inherit;font-size:inherit;background:transparent"
CELL = f"padding:3px 10px;text-align:left;vertical-align:top;{_LINE}"
_UPDATED, _COPIED, _TRAVELS = "rgba(45,125,225,.85)", "rgba(110,165,235,.5)", "rgba(225,120,20,.7)"


def html_of(plan: PlanTable) -> str:
    """Return a plan as HTML, with a row for each variable. Devices with equal bytes of every variable share a column.

    >>> row = Row("dense/<kernel>", "f32[7,128]", "ps(a:CPU:0)", 3584, 7168, {"a:CPU:0": DeviceBytes(3584)})
    >>> html = html_of(PlanTable("3f9c21", ("a:GPU:0",), (row,), ("it is the only one",)))
    >>> "dense/&lt;kernel&gt;" in html, "<li>it is the only one</li>" in html, html.count("<th")
    (True, True, 5)
    """
    columns = _columns(plan)
    most = max((each.updated + each.copied for row in plan.rows for each in row.devices.values()), default=0)
    widest = max((row.step or 0 for row in plan.rows), default=0)
    titles = ["variable", "synchronized by", *(_title(devices) for devices in columns), "travels", ""]
    titles = titles if any(row.note for row in plan.rows) else titles[:-1]
    head = line("th", f"{CELL};font-weight:600", titles)
    body = "".join(line("td", CELL, _cells(row, columns, most, widest)[: len(titles)]) for row in plan.rows)
    notes = "".join(f"<li>{escape(note)}</li>" for note in plan.notes)
    below = f'<ul style="margin:4px 0 0;padding-left:20px">{notes}</ul>' if notes else ""
    return (
        '<div style="font-size:13px;line-height:1.4;color:inherit">'
        f'<div style="font-weight:600">{escape(head_text(plan))}</div>'
        f'<div style="overflow-x:auto"><table style="{TABLE}">'
        f"<thead>{head}</thead><tbody>{body}</tbody></table></div>"
        f"<div>{escape(total_text(plan))}</div>{_memory(plan)}{_legend(plan)}{below}</div>"
    )


def _memory(plan: PlanTable) -> str:
    """A line with a bar for each memory: a part for the state, one for what a step takes besides."""
    most = max((max(each.peak, each.available or 0) for each in plan.memory), default=0)
    lines = []
    for each in plan.memory:
        state = each.weights + each.optimizer
        lines.append(beside(escape(str(each)), [(state, _UPDATED), (each.peak - state, _TRAVELS)], most))
    return "".join(f"<div>{text}</div>" for text in lines)


def line(tag: str, style: str, cells: Sequence[str]) -> str:
    """Return a row of a table.

    >>> line("td", "color:red", ["a"])
    '<tr><td style="color:red">a</td></tr>'
    """
    return "<tr>" + "".join(f'<{tag} style="{style}">{cell}</{tag}>' for cell in cells) + "</tr>"


def _columns(plan: PlanTable) -> list[tuple[str, ...]]:
    """The devices in groups. Devices of one group have equal bytes of every variable.

    >>> rows = (Row("w", "f32[1]", "all_reduce", 4, 8, dict.fromkeys("abc", DeviceBytes(4))),)
    >>> _columns(PlanTable("3f9c21", ("a", "b", "c"), rows))
    [('a', 'b', 'c')]
    """
    found: dict[tuple[DeviceBytes, ...], tuple[str, ...]] = {}
    for device in plan.devices:
        key = tuple(row.devices.get(device, DeviceBytes()) for row in plan.rows)
        found[key] = (*found.get(key, ()), device)
    return list(found.values())


def _title(devices: Sequence[str]) -> str:
    shown = devices if len(devices) < 4 else (*devices[:1], f"… {len(devices) - 2} more …", *devices[-1:])
    each = ' <span style="opacity:.65">(each)</span>' if len(devices) > 1 else ""
    return "<br>".join(f'<span style="white-space:nowrap">{escape(name)}</span>' for name in shown) + each


def _cells(row: Row, columns: Sequence[Sequence[str]], most: int, widest: int) -> list[str]:
    sizes = [row.devices.get(devices[0], DeviceBytes()) for devices in columns]
    return [
        f'{escape(row.name)}<br><span style="opacity:.65;white-space:nowrap">{escape(row.kind)}, '
        f"{format_bytes(row.size)}</span>",
        escape(row.text),
        *(_bytes(each, most) for each in sizes),
        beside(step_text(row.step), [(row.step or 0, _TRAVELS)], widest),
        escape(row.note),
    ]


def _bytes(sizes: DeviceBytes, most: int) -> str:
    """The bytes of a variable on one device, as a number and a bar."""
    if sizes == DeviceBytes():
        return ""
    parts = [format_bytes(sizes.updated)] if sizes.updated or not sizes.copied else []
    parts += [f"copy {format_bytes(sizes.copied)}"] if sizes.copied else []
    return beside("<br>".join(parts), [(sizes.updated, _UPDATED), (sizes.copied, _COPIED)], most)


def beside(shown: str, parts: Sequence[tuple[int, str]], whole: int) -> str:
    """Return a text with a bar below it. The length of each part of the bar is its share of `whole`.

    >>> beside("4 B", [(0, "red")], 4)
    '<span style="white-space:nowrap">4 B</span>'
    """
    bars = "".join(
        f'<div style="width:{max(100 * size / whole, 1):.1f}%;background:{colour}"></div>'
        for size, colour in parts if size
    )
    bar = f'<div style="display:flex;height:6px;width:100px;margin-top:2px">{bars}</div>' if bars else ""
    return f'<span style="white-space:nowrap">{shown}</span>{bar}'


def _legend(plan: PlanTable) -> str:
    sizes = [each for row in plan.rows for each in row.devices.values()]
    shown = [("updated here", _UPDATED)] if any(each.updated for each in sizes) else []
    shown += [("copy that follows a server", _COPIED)] if any(each.copied for each in sizes) else []
    shown += [("travels in a step", _TRAVELS)] if any(row.step for row in plan.rows) else []
    marks = "".join(
        f'<span style="margin-right:14px;white-space:nowrap"><span style="display:inline-block;width:18px;height:8px;'
        f'background:{colour};margin-right:5px"></span>{name}</span>'
        for name, colour in shown
    )
    return f'<div style="opacity:.8;margin-top:2px">{marks}</div>' if marks else ""
