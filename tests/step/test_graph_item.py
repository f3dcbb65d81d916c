"""GraphItem: what it says of its variables, its text, its errors, and its way through bytes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodist_core import CaptureError, Gradient, GraphItem, Table, Tensor, Variable
from autodist_core.proto import graphitem_pb2
from autodist_core.step.graph_item import Joined
from autodist_core.step.values import format_bytes
from tests.planning import goldens

ITEM = GraphItem(
    variables=(
        Variable("embed/table", (50, 4), "float32", is_sparse=True, handle="table"),
        Variable("dense/kernel", (4, 2), "bfloat16", handle="kernel"),
        Variable("norm/mean", (2,), "float32", trainable=False, aggregation="mean", handle="mean"),
        Variable("accuracy/total", (), "float32", trainable=False, aggregation="sum", kind="metric", handle="total"),
    ),
    gradients=(
        Gradient("embed/table", 0, "rows:0", "indices:0"),
        Gradient("dense/kernel", 0, "gradient:0"),
        Gradient("dense/kernel", 1, "gradient_1:0"),
    ),
    inputs=(Tensor("x", "int64", (None, 7)), Tensor("y", "string", None), Tensor("scale", "float32", ())),
    outputs=("loss:0",),
    concat_outputs=True,
    examples="examples",
    total="total_examples",
    cross_replica_sums=("statistics",),
    cross_replica_gathers=("embeddings",),
    cross_replica_maxima=("longest",),
    targets=("assign",),
    tables=(Table("vocabulary", "keys", "values"),),
    joined=(Joined("Max", "max"),),
    graph_bytes=b"\x0a\x00",
)


def test_what_it_says():
    assert list(ITEM.trainable_var_op_to_var) == ["embed/table", "dense/kernel"]
    assert ITEM.grad_target_pairs == {
        "rows:0": "embed/table",
        "gradient:0": "dense/kernel",
        "gradient_1:0": "dense/kernel",
    }
    assert ITEM.info.table_initializers == ["vocabulary"]
    packed = graphitem_pb2.Variable()
    assert ITEM.info.variables[1].Unpack(packed) and packed.name == "dense/kernel"
    goldens.check("graph_item", str(ITEM))


def test_equal_by_content():
    assert GraphItem(list(ITEM.variables)) == GraphItem(ITEM.variables)
    assert hash(ITEM) == hash(GraphItem.deserialize(ITEM.serialize()))
    assert replace(ITEM, examples="") != ITEM


def test_byte_sizes():
    sizes = {"bool": 6, "string": 0, "bfloat16": 12, "float16": 12, "float64": 48, "uint32": 24, "complex64": 48}
    assert {dtype: Variable("v", (3, 2), dtype).byte_size for dtype in sizes} == sizes
    assert [Variable("v", shape, "float32").byte_size for shape in ((), (0, 5))] == [4, 0]
    assert [format_bytes(count) for count in (0, 1023, 1024, 3 * 1024**3, 5 * 1024**4)] == [
        "0 B", "1023 B", "1.0 KiB", "3.0 GiB", "5.0 TiB"
    ]  # fmt: skip


def test_errors():
    wrong = {
        "dtype": lambda: Variable("v", (), "float23"),
        "aggregation": lambda: Variable("v", (), "float32", aggregation="avg"),
        "kind": lambda: Variable("v", (), "float32", kind="slot"),
        "shape": lambda: Variable("v", (-1, 2), "float32"),
        "name": lambda: Variable("", (), "float32"),
        "sparse": lambda: Variable("v", (), "float32", is_sparse=True),
        "input": lambda: Tensor("x", "f32", None),
        "twice": lambda: GraphItem((ITEM.variables[0], ITEM.variables[0])),
        "gradient": lambda: GraphItem(ITEM.variables, (Gradient("dense/kernal", 0, "g:0"),)),
        "bytes": lambda: GraphItem.deserialize(b"\xff\xff"),
    }
    lines = []
    for name, make in wrong.items():
        with pytest.raises(CaptureError) as caught:
            make()
        # The parser's own words differ between the versions of protobuf.
        text = goldens.message(caught.value).split(" (")[0] if name == "bytes" else goldens.message(caught.value)
        lines.append(f"{name}\n  {text}")
    goldens.check("graph_item_errors", "\n".join(lines))


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp", "Zs")), min_size=1, max_size=12
)


def allowed(field: str) -> list[str]:
    """What a field of a variable may be, as the error of a wrong one says."""
    with pytest.raises(CaptureError) as refusal:
        Variable(**{"name": "v", "shape": (), "dtype": "float32", field: "nonsense"})
    return str(refusal.value).partition("Known: ")[2].removesuffix(".").split(", ")


DTYPES, AGGREGATIONS, KINDS = map(st.sampled_from, map(allowed, ("dtype", "aggregation", "kind")))
SHAPES = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)

HOWS = st.sampled_from(["same", "sum", "mean", "max", "min", "rows", "each"])


@st.composite
def items(draw):
    names = draw(st.lists(NAMES, unique=True, max_size=5))
    variables = tuple(
        Variable(
            name, shape := draw(SHAPES), draw(DTYPES), draw(st.booleans()), bool(shape) and draw(st.booleans()),
            draw(AGGREGATIONS), draw(KINDS), draw(st.text(max_size=3)),
        )
        for name in names
    )  # fmt: skip
    gradients = [Gradient(name, draw(st.integers(0, 9)), f"{name}:0", draw(st.text(max_size=3))) for name in names]
    shapes = st.none() | st.lists(st.none() | st.integers(0, 2**40), max_size=3).map(tuple)
    texts = st.lists(st.text(max_size=4), max_size=3).map(tuple)
    return GraphItem(
        variables,
        tuple(gradients),
        tuple(draw(st.lists(st.builds(Tensor, NAMES, DTYPES, shapes, st.booleans(), st.booleans()), max_size=3))),
        draw(texts),
        draw(st.booleans()),
        draw(st.text(max_size=3)),
        draw(st.text(max_size=3)),
        draw(st.text(max_size=3)),
        draw(texts),
        draw(texts),
        draw(texts),
        draw(texts),
        tuple(draw(st.lists(st.builds(Table, NAMES, NAMES, NAMES), max_size=2))),
        tuple(draw(st.lists(st.builds(Joined, NAMES, HOWS), max_size=2))),
        draw(st.binary(max_size=20)),
        draw(st.booleans()),
    )


@given(items())
def test_round_trip_through_bytes(item):
    data = item.serialize()
    assert GraphItem.deserialize(data) == item
    assert GraphItem.deserialize(data).serialize() == data
