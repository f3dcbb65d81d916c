"""Every public name of tf.distribute works with its meaning, but those of the sessions of TensorFlow 1."""

from typing import Any

import pytest
import tensorflow as tf

from tests.support.distributed import MEAN, SUM, numbers, replicas, replicas_on

pytestmark = pytest.mark.oldest  # the names are those of the TensorFlow that is installed

OF_SESSIONS = {"make_dataset_iterator", "make_input_fn_iterator"}


def public(*owners: Any) -> set[str]:
    return {name for owner in owners for name in dir(owner) if not name.startswith("_")}


def each(value: Any) -> list[Any]:
    return [part.numpy().tolist() for part in value.values]


def test_every_name_of_a_strategy():
    mirrored = tf.distribute.MirroredStrategy(["CPU:0"])
    weight = tf.Variable(1.0)
    with replicas(count=2) as own:
        batch = next(iter(own.experimental_distribute_dataset(numbers(4))))
        iterator = iter(own.experimental_distribute_dataset(numbers(8, 4)))
        with own.scope(), own.colocate_vars_with(weight):
            colocated = tf.Variable(2.0)
        works = {
            "cluster_resolver": lambda: own.cluster_resolver is None,
            "colocate_vars_with": lambda: float(colocated) == 2.0 and type(colocated) is type(weight),
            "configure": lambda: own.configure() is None,
            "distribute_datasets_from_function": lambda: len(
                list(own.distribute_datasets_from_function(lambda context: numbers(4, 1)))
            ) == 2,
            "experimental_distribute_dataset": lambda: each(batch) == [[1.0, 2.0], [3.0, 4.0]],
            "experimental_distribute_datasets_from_function": lambda: len(
                list(own.experimental_distribute_datasets_from_function(lambda context: numbers(4, 1)))
            ) == 2,
            "experimental_distribute_values_from_function": lambda: each(
                own.experimental_distribute_values_from_function(lambda context: context.replica_id_in_sync_group)
            ) == [0, 1],
            "experimental_local_results": lambda: len(own.experimental_local_results(batch)) == 2,
            "experimental_run": lambda: each(own.experimental_run(tf.reduce_sum, iterator)) == [3.0, 7.0],
            "extended": lambda: isinstance(own.extended, tf.distribute.StrategyExtended),
            "gather": lambda: own.gather(batch, 0).numpy().tolist() == [1.0, 2.0, 3.0, 4.0],
            "group": lambda: own.group(batch) is None,
            "num_replicas_in_sync": lambda: own.num_replicas_in_sync == 2,
            "reduce": lambda: own.reduce(MEAN, batch, axis=0).numpy() == 2.5,
            "run": lambda: each(own.run(tf.reduce_sum, args=(batch,))) == [3.0, 7.0],
            "scope": lambda: own.scope() is not None,
            "unwrap": lambda: len(own.unwrap(batch)) == 2,
            "update_config_proto": lambda: own.update_config_proto(
                tf.compat.v1.ConfigProto(inter_op_parallelism_threads=3)
            ).inter_op_parallelism_threads == 3,
        }  # fmt: skip
        ours = {"autodist", "failures", "order", "plan", "verify"}
        names = public(tf.distribute.Strategy, mirrored, own) - ours
        check(own, names, works)


def test_every_name_of_extended():
    weight = tf.Variable(1.0)
    with replicas_on(numbers(2)) as (strategy, batch):
        own = strategy.extended
        with strategy.scope(), own.colocate_vars_with(weight):
            colocated = tf.Variable(2.0)
        devices = ("localhost:CPU:0", "localhost:CPU:1")
        works = {
            "batch_reduce_to": lambda: [
                part.numpy().tolist() for part in own.batch_reduce_to(SUM, [(batch, weight), (batch, weight)])
            ] == [[3.0], [3.0]],
            "call_for_each_replica": lambda: each(own.call_for_each_replica(tf.reduce_sum, (batch,))) == [1.0, 2.0],
            "colocate_vars_with": lambda: float(colocated) == 2.0,
            "experimental_between_graph": lambda: own.experimental_between_graph is False,
            "experimental_enable_get_next_as_optional": lambda: own.experimental_enable_get_next_as_optional,
            "experimental_require_static_shapes": lambda: own.experimental_require_static_shapes is False,
            "experimental_should_init": lambda: own.experimental_should_init,
            "non_slot_devices": lambda: own.update_non_slot(own.non_slot_devices([weight]), lambda: 3) == 3,
            "parameter_devices": lambda: own.parameter_devices == devices,
            "reduce_to": lambda: own.reduce_to(MEAN, batch, destinations=weight).numpy().tolist() == [1.5],
            "should_checkpoint": lambda: own.should_checkpoint,
            "should_save_summary": lambda: own.should_save_summary,
            "update": lambda: own.update(weight, lambda v, a: v.assign_add(a), (2.0,)) is not None and weight == 3.0,
            "update_non_slot": lambda: own.update_non_slot(None, lambda: 3, group=False) == (3,),
            "value_container": lambda: own.value_container(weight) is weight,
            "variable_created_in_scope": lambda: own.variable_created_in_scope(colocated),
            "worker_devices": lambda: own.worker_devices == devices,
        }  # fmt: skip
        check(own, public(tf.distribute.StrategyExtended, own), works)
        with pytest.raises(ValueError, match=r"value of each replica.*strategy.reduce"):
            own.update(weight, lambda variable, value: variable.assign(value), (batch,))


def test_every_name_of_the_replica_context():
    seen = {}
    with replicas(count=2) as strategy:

        def inside(x: Any) -> Any:
            own = tf.distribute.get_replica_context()
            works = {
                "all_gather": lambda: own.all_gather(x, 0).shape.rank == 1,
                "all_reduce": lambda: own.all_reduce(SUM, x).shape.rank == 1,
                "devices": lambda: len(own.devices) == 1,
                "merge_call": lambda: own.merge_call(lambda strategy, value: value, (3,)) == 3,
                "num_replicas_in_sync": lambda: own.num_replicas_in_sync == 2,
                "replica_id_in_sync_group": lambda: own.replica_id_in_sync_group.shape.rank == 0,
                "strategy": lambda: own.strategy is strategy,
            }
            names = public(tf.distribute.ReplicaContext, own)
            seen.update(names=names, works={name: bool(work()) for name, work in works.items()})
            return x

        strategy.run(inside, args=(next(iter(strategy.experimental_distribute_dataset(numbers(4)))),))
    assert seen["works"] == dict.fromkeys(seen["names"], True)


def test_every_name_of_a_dataset_and_of_its_iterator():
    theirs = tf.distribute.MirroredStrategy(["CPU:0"]).experimental_distribute_dataset(numbers(4))
    with replicas(count=2) as strategy:
        own = strategy.experimental_distribute_dataset(numbers(7, 3))
        first = next(iter(own))
        works = {
            "cardinality": lambda: int(own.cardinality) == 3,
            "element_spec": lambda: own.element_spec.is_compatible_with(first),
            "reduce": lambda: own.reduce(0, lambda total, element: total + len(element.values)) == 6,
        }
        check(own, public(tf.distribute.DistributedDataset, own) - {"inside", "pipeline"}, works)
        iterator = iter(own)
        works = {
            "element_spec": lambda: iterator.element_spec.is_compatible_with(first),
            "get_next": lambda: each(iterator.get_next()) == [[1.0, 2.0], [3.0]],
            "get_next_as_optional": lambda: each(iterator.get_next_as_optional().get_value()) == [[4.0, 5.0], [6.0]],
            "next": lambda: each(iterator.next()) == [[7.0], []],
        }
        check(iterator, public(tf.distribute.DistributedIterator, iter(theirs), iterator) - {"inside"}, works)
        assert not iterator.get_next_as_optional().has_value()


def check(own: Any, names: set[str], works: dict[str, Any]) -> None:
    assert {name: bool(work()) for name, work in works.items()} == dict.fromkeys(names - OF_SESSIONS, True)
    for name in names & OF_SESSIONS:
        with pytest.raises(NotImplementedError):
            getattr(own, name)("anything")
