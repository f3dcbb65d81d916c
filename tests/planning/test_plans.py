"""The plan of every builder, on three models and three clusters."""

import pytest

from autodist_core import GraphItem, ResourceSpec, StrategyCompiler, Variable
from autodist_core.plan import bytes_per_step, table
from autodist_core.strategy import PS, AllReduce, PartitionedPS
from tests.planning import cases, goldens


@pytest.mark.parametrize("cluster", cases.CLUSTERS)
@pytest.mark.parametrize("model", cases.MODELS)
def test_the_plan_of_every_builder(model, cluster):
    item, spec = cases.MODELS[model](), cases.cluster(cluster)
    compiler = StrategyCompiler(item, spec)
    plans = [
        f"{name}\n{table(compiler.compile(each.build(item, spec)), item)}" for name, each in cases.builders().items()
    ]
    goldens.check(f"plan_{model}_{cluster}", f"{spec}\n\n{item}\n\n" + "\n\n".join(plans))


@pytest.mark.parametrize("name", cases.builders())
def test_a_builder_partitions_for_no_single_server_and_no_single_replica(name):
    item, spec = cases.cnn(), ResourceSpec.local(cpus=1)
    strategy = cases.builders()[name].build(item, spec)
    assert not any(node.partitioner for node in strategy.node_config)
    compiled = StrategyCompiler(item, spec).compile(strategy)
    assert "single replica" in table(compiled)
    assert "; 0 B travel between devices per step" in table(compiled)


def test_what_is_not_exact_is_in_the_plan_by_name():
    item, spec = cases.cnn(), ResourceSpec.local(cpus=2)
    notes = [
        note
        for builder in (PS(sync=False), PS(staleness=3), AllReduce(compressor="HorovodCompressorEF"))
        for note in StrategyCompiler(item, spec).compile(builder.build(item, spec)).notes
    ]
    goldens.check("notes", "\n".join(notes))


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
        for compressor in ("HorovodCompressor", "HorovodCompressorEF", "PowerSGDCompressor"):
            item, spec = GraphItem((Variable("v", shape, name),)), ResourceSpec.local(cpus=2)
            built = AllReduce(compressor=compressor).build(item, spec)
            compiled = StrategyCompiler(item, spec).compile(built)
            assert bytes_per_step(compiled.variables[0], compiled.replicas) == 2 * size, (name, compressor)
