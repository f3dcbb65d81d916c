"""What a replica's copy of a step has of its own where random numbers are drawn, and that nothing else is copied."""

import keras
import tensorflow as tf

from autodist_core.kernel import build
from autodist_core.strategy import AllReduce
from tests.kernel.graphs import machine, placed
from tests.support.graphs import captured
from tests.support.models import stacked
from tests.support.training import seeded


class _Nested(keras.layers.Layer):
    """A loop whose condition draws nothing, and whose body calls a function that draws and one that does not."""

    def __init__(self, **arguments) -> None:
        super().__init__(**arguments)
        self.drawing = tf.function(lambda x: x * tf.random.uniform(tf.shape(x), dtype=x.dtype), autograph=False)
        self.quiet = tf.function(lambda x: tf.tanh(x), autograph=False)

    def call(self, x):
        return tf.while_loop(
            lambda count, value: count < 2,
            lambda count, value: (count + 1, self.quiet(value) + tf.stop_gradient(self.drawing(value))), (0, x),
        )[1]  # fmt: skip


def test_only_functions_that_draw_are_copied_and_once_for_each_replica_but_the_first():
    def build_model():
        return stacked(keras.Input((3,)), _Nested(name="nested"), keras.layers.Dense(1), jit_compile=False)

    item = captured(seeded(build_model), tf.ones((4, 3), "float64"), tf.ones((4, 1), "float64")).item
    before = {function.signature.name: function for function in item.graph_def.library.function}
    draws = {name for name, function in before.items() if any(n.op == "RandomUniform" for n in function.node_def)}
    assert draws
    graph = build(item, placed(item, AllReduce(), machine(3))).graph_def
    after = {function.signature.name: function for function in graph.library.function}
    assert before.items() <= after.items()
    copies = {name: after[name] for name in after.keys() - before.keys()}
    originals = {name.rpartition("__")[0] for name in copies}
    calling = {
        name for name, function in before.items()
        if any(node.attr["f"].func.name in draws for node in function.node_def if "f" in node.attr)
    }
    assert originals == draws | calling
    assert len(copies) == 2 * len(originals)
    seeds = {
        name: [node.attr["seed2"].i for node in function.node_def if node.op == "RandomUniform"]
        for name, function in after.items() if name.partition("__replica")[0] in draws
    }
    assert len({tuple(found) for found in seeds.values()}) == 3
    loops = {node.name: node.attr["body"].func.name for node in graph.node if "body" in node.attr}
    assert len(set(loops.values())) == len(loops)
    assert len({node.attr["cond"].func.name for node in graph.node if node.name in loops}) == len(loops) // 3
