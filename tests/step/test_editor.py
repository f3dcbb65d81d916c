"""The editor refuses graphs that cannot run, and says which node is the matter."""

import pytest
import tensorflow as tf

from autodist_core.errors import KernelError
from autodist_core.step.editor import Editor
from autodist_core.step.naming import ORDER, UPDATE, safe


def _chain(*names: str) -> Editor:
    editor, before = Editor(), []
    for name in names:
        before = [editor.add("NoOp", name, [f"^{source}" for source in before])]
    return editor


def _error(editor: Editor) -> str:
    with pytest.raises(KernelError) as failure:
        editor.graph_def()
    return str(failure.value)


def test_a_missing_input_is_named_with_its_reader():
    editor = _chain("first")
    editor.add("Identity", "second", ["nowhere:1", "^first"], T=tf.float32)
    editor.control("first", "gone")
    assert _error(editor) == (
        "the graph has inputs that nothing produces: first (NoOp) reads ^gone; second (Identity) reads nowhere:1."
    )


def test_a_cycle_is_told_from_what_hangs_on_it():
    editor = _chain("before", "one", "two", "after")
    editor.control("one", "two")
    assert _error(editor) == "the graph has a cycle through 3 nodes, among them one, two, after."


def test_what_a_change_has_broken_is_found():
    for break_it, message in (
        (lambda editor: editor.remove(["one"]), "two (NoOp) reads ^one"),
        (lambda editor: editor.change("before", inputs=["^two"]), "a cycle through 3 nodes, among them before, one"),
        (lambda editor: editor.add("NoOp", "after", ["^gone"]), "after (NoOp) reads ^gone"),
        (lambda editor: editor.control("two", "gone"), "two (NoOp) reads ^gone"),
    ):
        editor = _chain("before", "one", "two")
        editor.graph_def()
        break_it(editor)
        assert message in _error(editor) and message in _error(editor)


def test_a_node_takes_the_place_of_one_that_is_gone():
    editor = _chain("before", "one", "two")
    editor.remove(["one"])
    editor.add("NoOp", "last")
    editor.add("NoOp", "one", ["^before", "^last"])
    assert editor.sources()["two"] == {"one"}
    editor.control("last", "two")
    assert "a cycle through 3 nodes, among them two, last, one" in _error(editor)


def test_two_nodes_of_one_name():
    editor = _chain("same")
    with pytest.raises(KernelError, match=r"^two nodes are called 'same': NoOp and Identity\.$"):
        editor.add("Identity", "same", ["same"], T=tf.float32)
    other = Editor()
    other.add("NoOp", "same")
    with pytest.raises(KernelError, match=r"'same': NoOp and NoOp"):
        editor.merge(other)


def test_the_finished_graph_is_free_of_our_attributes():
    editor = Editor()
    editor.add("NoOp", "node", order=3)
    node = editor["node"]
    node.attr[UPDATE].i = 1
    copy = editor.copy(node, "copy", [], "/device:CPU:1", order=4)
    assert copy.attr[ORDER].i == 4 and UPDATE not in copy.attr
    assert [(node.name, node.device, dict(node.attr)) for node in editor.graph_def().node] == [
        ("node", "", {}), ("copy", "/device:CPU:1", {}),
    ]  # fmt: skip
    assert editor["node"].attr[ORDER].i == 3


def test_a_node_never_waits_for_itself_or_twice_for_another():
    editor = _chain("first", "second")
    editor.control("second", "first", "second", "first")
    assert list(editor["second"].input) == ["^first"]


def test_a_traced_function_reads_the_tensors_of_the_graph():
    editor = Editor()
    for name in ("a", "b"):
        editor.constant(name, [1.0, 2.0], tf.float64)
    spec = tf.TensorSpec((2,), tf.float64)
    total, product = editor.trace("traced", lambda a, b: (a + b, a * b), {"a": spec, "b:0": spec}, "/device:CPU:0")
    graph = tf.Graph()
    with graph.as_default():
        found = tf.graph_util.import_graph_def(editor.graph_def(), return_elements=[f"{total}:0", f"{product}:0"])
        with tf.compat.v1.Session(graph=graph) as session:
            assert [list(value) for value in session.run(found)] == [[2.0, 4.0], [1.0, 4.0]]
    assert total.startswith("traced/") and product.startswith("traced/")


def test_a_constant_is_there_once():
    editor = Editor()
    assert editor.constant("one", 1, tf.int32) == editor.constant("one", 1, tf.int32) == "one"
    assert editor.histogram() == {"Const": 1}


ALIKE = ["w", "w ä", "w ö", "w_ö", "w__", "w.a", "w@a", "w-e4-", "w\\ä", "w>a", "w/a", "w  "]


def test_every_variable_has_a_label_of_its_own():
    assert len({safe(name) for name in ALIKE}) == len(ALIKE)
    for name in ALIKE:
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(_chain(f"variable/{safe(name)}").graph_def(), name="")
            assert [operation.name for operation in graph.get_operations()] == [f"variable/{safe(name)}"]
            with tf.compat.v1.Session() as session:
                session.run(graph.get_operations()[0])
