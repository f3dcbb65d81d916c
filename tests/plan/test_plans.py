"""The plan of every builder, on three models and three clusters: a string, and a table of HTML."""

import copy
import pickle
from html.parser import HTMLParser

import pytest

from autodist_core import GraphItem, ResourceSpec, StrategyCompiler, Variable
from autodist_core.plan import Plan, bytes_per_step, notes, plan_table
from autodist_core.plan.text import text_of
from autodist_core.strategy import PS, AllReduce, PartitionedPS
from tests.planning import cases, goldens
from tests.support.machines import machines
from tests.support.strategies import LOSSY


@pytest.mark.parametrize("cluster", cases.CLUSTERS)
@pytest.mark.parametrize("model", cases.MODELS)
def test_the_plan_of_every_builder(model, cluster):
    item, spec = cases.MODELS[model](), cases.cluster(cluster)
    compiler = StrategyCompiler(item, spec)
    compiled = {name: compiler.compile(each.build(item, spec)) for name, each in cases.builders().items()}
    plans = [f"{name}\n{Plan(plan_table(each, item))}" for name, each in compiled.items()]
    goldens.check(f"plan_{model}_{cluster}", f"{spec}\n\n{item}\n\n" + "\n\n".join(plans))


@pytest.mark.parametrize("name", cases.builders())
def test_a_builder_partitions_for_no_single_server_and_no_single_replica(name):
    item, spec = cases.cnn(), ResourceSpec.local(cpus=1)
    strategy = cases.builders()[name].build(item, spec)
    assert not any(node.partitioner for node in strategy.node_config)
    compiled = StrategyCompiler(item, spec).compile(strategy)
    assert "single replica" in Plan(plan_table(compiled))
    assert "; 0 B travel between devices per step" in Plan(plan_table(compiled))


def test_what_is_not_exact_is_in_the_plan_by_name():
    found = [
        note for builder in (PS(sync=False), PS(staleness=3), AllReduce(compressor="HorovodCompressorEF"))
        for note in _notes(builder)
    ]
    goldens.check("notes", "\n".join(found))


def _notes(builder, item=None, replicas=2):
    item, spec = item or cases.cnn(), ResourceSpec.local(cpus=replicas)
    return tuple(notes(StrategyCompiler(item, spec).compile(builder.build(item, spec))))


def test_a_compressor_is_lossy_where_something_is_compressed():
    sgd = AllReduce(compressor="PowerSGDCompressor")
    half = AllReduce(compressor="HorovodCompressor")
    small = GraphItem((Variable("w", (3, 3), "float32"), Variable("b", (700,), "float32")))
    integers = GraphItem((Variable("w", (300, 300), "int32"),))
    rows = GraphItem((Variable("table", (300, 300), "float32", is_sparse=True),))
    for builder in (sgd, half):
        name = builder.compressor
        assert _notes(builder) == (f"not exact: {name} is lossy",)
        assert _notes(builder, replicas=1) == _notes(AllReduce(), replicas=1)
        for item in (integers, rows):
            assert _notes(builder, item) == (f"{name} has no effect: what it would send is no smaller",)
    assert _notes(sgd, small) == ("PowerSGDCompressor has no effect: what it would send is no smaller",)
    assert _notes(half, small) == ("not exact: HorovodCompressor is lossy",)


def test_in_shared_memory_nothing_travels_and_nothing_is_split():
    item, spec = cases.cnn(), ResourceSpec.local(cpus=3)
    compiled = StrategyCompiler(item, spec).compile(PartitionedPS().build(item, spec))
    text = Plan(plan_table(compiled, item, memories=(0, 0, 0)))
    assert "split" not in text and "ps(" not in text and "uneven" not in text
    assert text.count("in shared memory") == len(compiled.variables) == text.count(" 0 B/step")
    assert "; 0 B travel between devices per step" in text and "rows" not in text


def test_notes_on_other_numbers_come_first_and_the_head_has_the_name():
    item, spec = cases.cnn(), ResourceSpec.local(cpus=3)
    compiled = StrategyCompiler(item, spec).compile(PS(sync=False).build(item, spec))
    said = ["a remark", "not exact: another reason", "a last one"]
    lines = Plan(plan_table(compiled, item, (), said, "PS(sync=False)"))
    assert lines.splitlines()[0] == f"strategy {compiled.id}, PS(sync=False) @ 3 replicas"
    assert [line.removeprefix("  note: ") for line in lines.splitlines() if "note:" in line] == [
        "not exact: asynchronous updates (sync=False) use gradients of older weights", "not exact: another reason",
        "a remark", "a last one",
    ]  # fmt: skip
    assert "PS(sync=False) @ 3 replicas" in lines._repr_html_()


def test_replicas_that_share_memory_count_as_one():
    """Over two machines, values travel once to each, and one replica of each machine has the copy."""
    item, spec = cases.cnn(), machines(2, 2)
    size = item.trainable_var_op_to_var["dense/kernel"].byte_size
    for builder in (PS(), AllReduce()):
        compiled = StrategyCompiler(item, spec).compile(builder.build(item, spec))
        found = {}
        for memories in ((0, 0, 2, 2), (0, 1, 2, 3)):
            row = next(row for row in plan_table(compiled, item, memories).rows if row.name == "dense/kernel")
            found[memories] = row.step, len(row.devices)
        assert found == {(0, 0, 2, 2): (2 * size, 2), (0, 1, 2, 3): (6 * size, 4)}


def test_bytes_per_step():
    item, spec = cases.cnn(), ResourceSpec.local(cpus=3)
    size = item.trainable_var_op_to_var["dense/kernel"].byte_size

    def travel(builder, times=1):
        compiled = StrategyCompiler(item, spec).compile(builder.build(item, spec))
        return bytes_per_step(compiled.variables[2], compiled.replicas, times)

    assert travel(AllReduce()) == 2 * 2 * size
    assert travel(AllReduce(), times=2) == 2 * travel(AllReduce())
    # One of the three replicas is on the device that holds the variable.
    assert travel(PS()) == 2 * 2 * size == travel(PartitionedPS())
    assert travel(AllReduce(compressor="HorovodCompressor")) == travel(AllReduce()) / 2
    assert travel(AllReduce(compressor="HorovodCompressorEF", wire_dtype="bfloat16")) == travel(AllReduce()) / 2
    assert travel(AllReduce(compressor="PowerSGDCompressor")) == 2 * 2 * 4 * 2 * (5408 + 2048)
    assert travel(AllReduce(bucket_bytes=100)) == travel(AllReduce())


def test_what_is_small_already_is_not_compressed_in_the_plan():
    shape = (30, 40)
    plain = {name: 1200 * size for name, size in (("int32", 4), ("complex64", 8), ("half", 2), ("bfloat16", 2))}
    for name, size in plain.items():
        for builder in LOSSY:
            item, spec = GraphItem((Variable("v", shape, name),)), ResourceSpec.local(cpus=2)
            compiled = StrategyCompiler(item, spec).compile(builder.build(item, spec))
            assert bytes_per_step(compiled.variables[0], compiled.replicas) == 2 * size, (name, builder)


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
