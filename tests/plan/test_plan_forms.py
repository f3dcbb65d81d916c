"""A plan is a string, and a table of HTML, in which all text is escaped."""

import copy
import pickle
from html.parser import HTMLParser

from autodist_core import GraphItem, ResourceSpec, StrategyCompiler, Variable
from autodist_core.plan import Plan, plan_table
from autodist_core.plan.text import text_of
from autodist_core.strategy import PS, AllReduce, PartitionedPS

ITEM = GraphItem((
    Variable("dense/<kernel> & more", (6, 8), "float32"), Variable("embed/table", (10, 4), "float32", is_sparse=True),
))  # fmt: skip


def _plan(builder, cpus: int = 2) -> Plan:
    spec = ResourceSpec.local(cpus=cpus)
    return Plan(plan_table(StrategyCompiler(ITEM, spec).compile(builder.build(ITEM, spec)), ITEM, (), ["<b>bold</b>"]))


class Read(HTMLParser):
    """The texts of a table's cells, row by row, and whether every tag is closed."""

    def __init__(self, html: str):
        super().__init__()
        self.rows, self.open, self.notes = [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "li":
            self.notes.append("")

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


def test_a_table_has_the_columns_of_the_text():
    read = Read(_plan(PS())._repr_html_())
    assert read.rows == [
        ["variable", "type", "synchronized by", "size", "travels", "note"],
        ["dense/<kernel> & more", "f32[6,8]", "ps(localhost:CPU:0)", "192 B", "384 B/step", ""],
        ["embed/table", "f32[10,4] sparse", "ps(localhost:CPU:0)", "160 B", "rows/step", ""],
    ]
    assert read.notes == ["<b>bold</b>"]


def test_what_a_device_updates_of_a_split_variable_adds_up():
    for row in _plan(PartitionedPS(), 3).table.rows:
        assert sum(sizes.updated for sizes in row.devices.values()) == row.size


def test_a_plan_without_variables_and_notes():
    spec = ResourceSpec.local(cpus=2)
    empty = GraphItem(())
    plan = Plan(plan_table(StrategyCompiler(empty, spec).compile(AllReduce().build(empty, spec))))
    assert Read(plan._repr_html_()).rows == [["variable", "type", "synchronized by", "size", "travels", "note"]]
