"""The time of a step, predicted from what its variables add to it: against the plan's bytes, and by hand."""

import time
from dataclasses import replace

import pytest

from autodist_core import GraphItem, ResourceSpec, StrategyCompiler, Variable
from autodist_core.auto.charges import INTERVALS, Charging
from autodist_core.auto.choosing import USUAL, Trial
from autodist_core.auto.prediction import BACK, COMPUTE, PARTS, UPDATING, WIRE, predict
from autodist_core.auto.profiles import FORWARD, HANDLING, LATENCY, PEER, RING, UPDATE, ClusterProfile, ModelProfile
from autodist_core.plan.headline import bytes_of_links
from autodist_core.strategy import PS, AllReduce, Parallax, PartitionedPS, PSLoadBalancing, Sharded
from tests.planning import cases

KERNEL = GraphItem((Variable("kernel", (1000, 1000), "float32"),))
RATE = 1e9 / 8 * 0.957
CALL = 2 * LATENCY


def machines(count, **settings):
    nodes = [{"address": f"10.0.0.{n + 1}", "chief": n == 0, **settings} for n in range(count)]
    return ResourceSpec({"nodes": nodes})


def compiled(builder, item, spec):
    return StrategyCompiler(item, spec).compile(builder.build(item, spec))


def predicted(builder, item=KERNEL, spec=None, examples=1000, **profiles):
    trial = Trial.of(item, spec or machines(2), examples, **profiles)
    return trial.candidate("", builder.build(trial.item, trial.spec)).prediction


@pytest.mark.parametrize("name", cases.builders())
@pytest.mark.parametrize("model", cases.MODELS)
def test_charges_have_the_bytes_of_the_plan(model, name):
    item, spec = cases.MODELS[model](), cases.cluster("uneven")
    plans = compiled(cases.builders()[name], item, spec).variables
    dense = [plan for plan in plans if not plan.variable.is_sparse]
    charging = Charging(ModelProfile.assumed(item), ClusterProfile.assumed(spec), 64)
    charges = [charging.of(plan) for plan in dense]
    names = [node.address for node in spec.nodes]
    served = [each for charge in charges for each in charge.servers]
    for address, size in bytes_of_links(dense, names, {}).items():
        own = sum((1 if each.machine != address else len(names) - 1) * each.push for each in served)
        ring = sum(charge.ring for charge in charges)
        assert own + ring == pytest.approx(size), "in both phases together, each direction has as many"
        assert all(each.push == each.pull for each in served)


def test_an_all_reduce_is_the_backward_pass_and_the_bytes():
    found = predicted(AllReduce())
    compute, wire = 6e6 * 500 / 2e10, 4e6 / RATE
    assert found.parts["10.0.0.1"] == pytest.approx({
        COMPUTE: compute, WIRE: wire + 2 * LATENCY + PEER + CALL, UPDATING: 4e6 * UPDATE / 2, BACK: 0.0,
    })  # fmt: skip
    assert found.step == pytest.approx(sum(found.parts["10.0.0.2"].values()))
    few, many = (predicted(AllReduce(all_reduce_spec=spec), spec=machines(3)).step for spec in ("NCCL", "RING"))
    assert many - few == pytest.approx(2 * LATENCY + PEER), "a ring has two more hops than sends"
    assert list(found.parts["10.0.0.1"]) == list(PARTS)


def test_a_server_gets_all_gradients_and_then_sends_all_values():
    found = predicted(PS(), spec=machines(3), examples=999)
    wire = 2 * 4e6 / RATE
    assert found.part(WIRE) == pytest.approx(wire + LATENCY + 2 * PEER + CALL)
    assert found.part(BACK) == pytest.approx(wire + LATENCY)
    assert found.links == pytest.approx({"10.0.0.1": 2 * wire, "10.0.0.2": wire, "10.0.0.3": wire})
    assert found.busiest_link == "10.0.0.1"


def test_what_is_ready_early_travels_during_the_backward_pass():
    layers = GraphItem(tuple(Variable(f"layer{n}", (500, 1000), "float32") for n in range(2)))
    whole, halves = predicted(AllReduce()), predicted(AllReduce(), layers)
    assert whole.part(COMPUTE) == pytest.approx(halves.part(COMPUTE)) == pytest.approx(0.15)
    assert ModelProfile.assumed(layers).ready["layer1"] == pytest.approx(FORWARD + (1 - FORWARD) / 2)
    hidden = 2e6 / RATE
    assert halves.step == pytest.approx(whole.step - hidden)


def test_the_slowest_link_is_waited_for():
    nodes = [{"address": f"10.0.0.{n}", "chief": n == 1, "network_bandwidth": 10 - 9 * (n == 3)} for n in (1, 2, 3)]
    fast, slow = machines(3, network_bandwidth=10), ResourceSpec({"nodes": nodes})
    assert predicted(AllReduce(), spec=slow).step == pytest.approx(predicted(AllReduce(), spec=machines(3)).step)
    assert predicted(AllReduce(), spec=slow).step > predicted(AllReduce(), spec=fast).step
    # The first machine is the server: the slow one only sends its own gradient, and gets the value.
    assert predicted(PS(), spec=slow).part(BACK) == pytest.approx(4e6 / RATE + LATENCY)
    assert predicted(PS(), spec=slow).busiest_link == "10.0.0.3"


def test_replicas_of_one_machine_send_nothing_over_a_link():
    for builder in (AllReduce(), PS(), PartitionedPS()):
        found = predicted(builder, spec=ResourceSpec.local(cpus=2))
        assert (found.part(WIRE), found.part(BACK)) == (0.0, 0.0)
    two = ResourceSpec({"nodes": [{"address": "localhost", "chief": True, "gpus": [0, 1]}]})
    all_reduced, served = (predicted(builder, spec=two, examples=64) for builder in (AllReduce(), PS()))
    assert 0 < all_reduced.part(WIRE) < served.part(WIRE), "a GPU sends its gradient and gets the value"
    assert served.part(UPDATING) > all_reduced.part(UPDATING), "a processor updates slower than a GPU"


def test_factors_travel_in_small_batches_and_cost_arithmetic():
    spec = machines(2)
    plan = compiled(AllReduce(), KERNEL, spec).variables[0]
    limit = plan.synchronizer.factor_rows
    for examples, ring, work in ((limit, limit * 8000 / 2, 1e6 * limit), (limit + 1, 4e6, 0.0)):
        charge = Charging(ModelProfile.assumed(KERNEL), ClusterProfile.assumed(spec), examples).of(plan)
        assert (charge.ring, charge.work) == (ring, work)
    more = machines(2, cpus=[0, 1, 2])
    assert Charging(ModelProfile.assumed(KERNEL), ClusterProfile.assumed(more), 8).of(plan).work == 0.0


def test_of_a_table_rows_travel_and_a_slot_makes_the_update_dense():
    table = Variable("table", (100_000, 8), "float32", is_sparse=True)
    slot = Variable("momentum", (100_000, 8), "float32", trainable=False, kind="optimizer")
    spec, rows = machines(2), 64 * 32.0
    for item, updated in ((GraphItem((table,)), rows), (GraphItem((table, slot)), 3_200_000.0)):
        charging = Charging(ModelProfile.assumed(item), ClusterProfile.assumed(spec), 64)
        gathered, served = (charging.of(compiled(each, item, spec).variables[0]) for each in (AllReduce(), Parallax()))
        assert (gathered.ring, gathered.update, gathered.servers) == (rows / 2, updated, ())
        (server,) = served.servers
        assert (server.push, server.fetch, server.pull, server.update) == (rows / 2, rows / 2, 0.0, updated)


def test_compressors_and_owners_change_what_travels():
    half = predicted(AllReduce(compressor="HorovodCompressor", factor_rows=0))
    assert half.part(WIRE) - 2 * LATENCY - PEER - CALL == pytest.approx(2e6 / RATE)
    kept, gathered = predicted(Sharded()), predicted(Sharded(weights="gathered"))
    assert gathered.links["10.0.0.1"] == pytest.approx(1.25 * kept.links["10.0.0.1"])


def _measured(cluster: ClusterProfile, rate: float, processors: float) -> ClusterProfile:
    return ClusterProfile(tuple(replace(each, rate=rate, processors=processors) for each in cluster.machines))


def test_a_measured_rate_changes_compute_and_nothing_else():
    spec = machines(2)
    cluster = ClusterProfile.assumed(spec)
    found = predicted(AllReduce(), spec=spec, cluster=_measured(cluster, 4e10, processors=2))
    before = predicted(AllReduce(), spec=spec)
    assert found.part(COMPUTE) == before.part(COMPUTE) / 2
    assert found.part(UPDATING) == before.part(UPDATING)
    late = replace(ModelProfile.assumed(KERNEL), ready={"kernel": 1 / INTERVALS})
    assert predicted(AllReduce(), model=late).step < before.step


def test_processors_hold_up_what_a_link_would_carry():
    cluster = _measured(ClusterProfile.assumed(machines(2)), 2e10, processors=0.01)
    ring = AllReduce(all_reduce_spec="RING")
    for builder, moved, hops, peers in ((AllReduce(), 8e6, 2, 2), (ring, RING * 8e6, 2, 3), (PS(), 4e6, 1, 2)):
        found = predicted(builder, cluster=cluster)
        assert found.part(WIRE) == pytest.approx((moved * HANDLING + peers * PEER) / 0.01 + hops * LATENCY + CALL)
    assert found.part(BACK) == pytest.approx(4e6 * HANDLING / 0.01 + LATENCY)


def test_plans_are_predicted_fast():
    """The bounds are five to ten times what an idle machine takes."""
    item = GraphItem(tuple(Variable(f"kernel{n}", (64 * (1 + n % 7), 512), "float32") for n in range(200)))
    trial = Trial.of(item, machines(8), 1024)
    charges = trial.candidate("", PSLoadBalancing().build(item, trial.spec)).charges
    began = time.process_time()
    for _ in range(100):
        predict(charges, trial.charging.cluster.machines, trial.compute)
    assert time.process_time() - began < 0.5, "thousands in a second"
    large = Trial.of(item, machines(64, gpus=list(range(8))), 1024)
    began = time.process_time()
    assert len(large.compared(USUAL)) > 3
    assert time.process_time() - began < 5
