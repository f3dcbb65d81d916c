"""A plan is a string, and a table of HTML: devices are columns, bytes are bars, notes stand below, all text escaped."""

import copy
import pickle
import re
from html.parser import HTMLParser

import pytest

from autodist_core import GraphItem, ResourceSpec, StrategyCompiler, Variable
from autodist_core.plan import Plan, table
from autodist_core.plan.text import text_of
from autodist_core.strategy import PS, AllReduce, PartitionedPS

ITEM = GraphItem((
    Variable("dense/<kernel> & more", (6, 8), "float32"), Variable("embed/table", (10, 4), "float32", is_sparse=True),
))  # fmt: skip


def _plan(builder, cpus: int = 2, shared: bool = False) -> Plan:
    spec, memories = ResourceSpec.local(cpus=cpus), (0,) * cpus if shared else ()
    return table(StrategyCompiler(ITEM, spec).compile(builder.build(ITEM, spec)), ITEM, memories, ["<b>bold</b>"])


class Read(HTMLParser):
    """The texts of a table's cells, row by row, and whether every tag is closed."""

    def __init__(self, html: str):
        super().__init__()
        self.rows, self.open, self.widths, self.notes = [], [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag == "br":
            return
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "li":
            self.notes.append("")
        self.widths += re.findall(r"^width:([0-9.]+)%", dict(attrs).get("style", ""))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data
        if "li" in self.open:
            self.notes[-1] += data


def test_a_plan_is_a_string_as_it_was():
    plan = _plan(PS())
    assert str(plan) == plan == text_of(plan.table)
    assert type(str(plan)) is str
    assert plan.splitlines()[-1] == "  note: <b>bold</b>"
    assert "embed/table" in plan
    for again in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert (again, again.table, again._repr_html_()) == (plan, plan.table, plan._repr_html_())


def test_devices_are_columns_and_bytes_are_bars():
    read = Read(_plan(PS())._repr_html_())
    assert read.rows == [
        ["variable", "synchronized by", "localhost:CPU:0", "localhost:CPU:1", "travels"],
        ["dense/<kernel> & moref32[6,8], 192 B", "ps(localhost:CPU:0)", "192 Bcopy 192 B", "copy 192 B", "384 B/step"],
        ["embed/tablef32[10,4] sparse, 160 B", "ps(localhost:CPU:0)", "160 B", "", "rows/step"],
    ]
    assert read.widths == ["50.0", "50.0", "50.0", "100.0", "41.7"]
    assert read.notes == ["<b>bold</b>"]


@pytest.mark.parametrize("builder, cpus, shared, columns", [
    (AllReduce(), 2, False, ["localhost:CPU:0localhost:CPU:1 (each)"]),
    (AllReduce(), 6, False, ["localhost:CPU:0… 4 more …localhost:CPU:5 (each)"]),
    (AllReduce(), 2, True, ["memory of all replicas"]),
    (PartitionedPS(), 3, False, ["localhost:CPU:0", "localhost:CPU:1", "localhost:CPU:2"]),
], ids=["reduced", "many", "shared", "split"])  # fmt: skip
def test_devices_that_hold_the_same_share_a_column(builder, cpus: int, shared: bool, columns: list[str]):
    assert Read(_plan(builder, cpus, shared)._repr_html_()).rows[0][2:-1] == columns


def test_what_a_device_updates_of_a_split_variable_adds_up():
    for row in _plan(PartitionedPS(), 3).table.rows:
        assert sum(sizes.updated for sizes in row.devices.values()) == row.size


def test_a_plan_without_variables_and_notes():
    spec = ResourceSpec.local(cpus=2)
    empty = GraphItem(())
    plan = table(StrategyCompiler(empty, spec).compile(AllReduce().build(empty, spec)))
    assert Read(plan._repr_html_()).rows == [["variable", "synchronized by", "travels"]]
