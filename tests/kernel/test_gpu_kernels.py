"""What the kernels place on a GPU has a GPU kernel of TensorFlow for its types. No GPU is needed.

The operations of a model that have none are TensorFlow's placer to put on the CPU of the same machine, as it does for
plain Keras.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.kernel import build
from autodist_core.kernel.loose_graphs import loose_graph
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy import AllReduce, Parallax, PartitionedPS, PSLoadBalancing, Sharded, StrategyBuilder
from tests.equality.test_more_models import MODELS as MORE
from tests.kernel.graphs import machine, placed, placed_on
from tests.support.gpu_kernels import on_gpus, without_kernel
from tests.support.graphs import captured
from tests.support.models import MODELS, TWICE, ReferenceModel
from tests.support.strategies import LOSSY
from tests.support.training import compiled

CASES = {model.name: model for model in (*MODELS, *TWICE, *MORE.values())}
FLOATING = {each.as_datatype_enum for each in (tf.float16, tf.bfloat16, tf.float32, tf.float64)}
BUILDERS: tuple[StrategyBuilder, ...] = (
    Parallax(), PartitionedPS(), Sharded("gathered", whole_bytes=0), AllReduce(factor_rows=1000),
    *LOSSY, AllReduce(compressor="HorovodCompressorEF", wire_dtype="bfloat16"), PSLoadBalancing(staleness=2),
)  # fmt: skip


def _cast(array: np.ndarray) -> np.ndarray:
    return array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array


def graphs(item: GraphItem, builder: StrategyBuilder):
    """The graphs of a step over the GPUs of one machine, and of two."""
    for placement in (placed(item, builder, machine(cpus=1, gpus=2)), placed_on(item, builder, 2, 1, kind="gpus")):
        if placement.loose is None:
            yield build(item, placement)
            continue
        yield from (loose_graph(what, item, placement, 1) for what in ("compute", "follow", "discard"))
        yield from (loose_graph("update", item, placement, 0, 1), loose_graph("combine", item, placement))


@pytest.fixture(scope="module", autouse=True)
def kernels_are_registered():
    product = tf.compat.v1.NodeDef(op="MatMul", name="product")
    product.attr["T"].type = tf.float32.as_datatype_enum
    if without_kernel([product]):
        pytest.skip("this TensorFlow was built without GPU kernels")


@pytest.mark.quick("embedding-float64", "dense-mixed_float16")
@pytest.mark.parametrize(
    "name, policy", [*((name, "float64") for name in CASES), ("dense", "mixed_float16"), ("dense", "mixed_bfloat16")]
)
def test_all_that_is_added_to_a_step_has_a_kernel(name: str, policy: str):
    keras.config.set_floatx("float64" if policy == "float64" else "float32")
    keras.config.set_dtype_policy(policy)
    reference: ReferenceModel = CASES[name]
    data = reference.data()
    x, y = keras.tree.map_structure(_cast, (data.x, data.y))
    item = captured(compiled(reference, "adam"), x, y, fused_kernels=True).item
    of_the_model = without_kernel(item.graph_def.node)
    seen = 0
    for builder in BUILDERS:
        for graph in graphs(item, builder):
            nodes = on_gpus(graph.graph_def)
            seen += len(nodes)
            found = {kind: node for kind, node in without_kernel(nodes).items() if kind not in of_the_model}
            assert not found, (builder, found)
            assert all(node.device for node in graph.graph_def.node)
            summed = {node.attr["T"].type for node in nodes if node.op == "CollectiveReduceV2"}
            assert summed <= FLOATING, "a ring adds integers in the memory of the host, where a GPU's are not"
    assert seen > 100


def test_a_node_without_a_kernel_is_found():
    with tf.Graph().as_default() as graph, tf.device("/device:GPU:1"):
        tf.strings.join([["a"], ["b"]])
        tf.raw_ops.CollectiveReduceV2(
            input=tf.ones([1], "int32"), group_size=2, group_key=1, instance_key=1, ordering_token=[], merge_op="Add",
            final_op="Id",
        )
        tf.zeros([1, 1]) @ tf.ones([1, 1])
    assert {kind[0] for kind in without_kernel(on_gpus(graph.as_graph_def()))} == {"Const", "StringJoin"}
