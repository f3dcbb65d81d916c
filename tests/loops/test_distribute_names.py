"""Every public name of tf.distribute works with its meaning, and says what arguments it does not take."""

from typing import Any

import numpy as np
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


context = tf.distribute.get_replica_context


def double(x: Any) -> Any:
    return 2 * x


def in_run(strategy: Any, function: Any, *args: Any) -> Any:
    return strategy.run(lambda *values: function(*values), args=args)


def merged(strategy: Any, function: Any, *args: Any) -> Any:
    """Call a function of the strategy and of each replica's own values, as libraries of TensorFlow do."""
    return in_run(strategy, lambda *values: context().merge_call(function, args=values), *args)


def test_what_is_received_is_checked_before_tensorflow_gets_it(mirrored):
    with replicas(count=2) as strategy, replicas(count=3) as other:
        (slices,) = strategy.experimental_distribute_dataset(numbers(3))
        pair, one = strategy.run(lambda: tf.constant([1.0, 2.0])), strategy.run(lambda: tf.constant(1.0))
        text, flag = strategy.run(lambda: (tf.constant("a"), tf.constant(True)))
        three = other.run(lambda: tf.constant([1.0, 2.0]))
        with mirrored.scope():
            foreign = tf.Variable(1.0)
        data = strategy.experimental_distribute_dataset(numbers(3))
        wrong = {
            "reduce: received values of 3 replicas, and this strategy has 2": lambda: strategy.reduce(SUM, three, None),
            "gather: received values of 3 replicas": lambda: strategy.gather(three, 0),
            "experimental_local_results: received values of 3": lambda: strategy.experimental_local_results([three]),
            "run: received values of 3 replicas": lambda: strategy.run(double, args=(three,)),
            "reduce_to: received values of 3": lambda: strategy.extended.reduce_to(SUM, three, "CPU:0"),
            "a MirroredVariable of another tf.distribute strategy": lambda: strategy.reduce(SUM, foreign, None),
            r"reduce takes numbers. Received a string .*Gather it": lambda: strategy.reduce(SUM, text, None),
            r"reduce takes numbers. Received a bool .*tf\.cast": lambda: strategy.reduce(MEAN, flag, None),
            r"all_reduce takes numbers. Received a bool": lambda: in_run(
                strategy, lambda x: context().all_reduce(SUM, x), flag),
            r"all_reduce: received a value of each replica .* args=\(value,\)": lambda: strategy.run(
                lambda: context().all_reduce(SUM, pair)),
            r"reduce\(axis=1\): the values have 1 axis.*axis=None": lambda: strategy.reduce(SUM, pair, 1),
            r"reduce\(axis=0\): the values have no axes.*axis=None": lambda: strategy.reduce(MEAN, one, 0),
            r"reduce\(axis='x'\): an axis is a whole number": lambda: strategy.reduce(SUM, tf.ones([2]), "x"),
            "reduce: the replicas' values are float64 .*With an axis": lambda: strategy.reduce(SUM, slices, None),
            r"gather\(axis=0\): the values have no axes.*tf.newaxis": lambda: strategy.gather(one, 0),
            r"gather\(axis='x'\): an axis is a whole number": lambda: strategy.gather(pair, "x"),
            r"gather\(axis=\(0, 1\)\): values are concatenated along one axis": lambda: strategy.gather(pair, (0, 1)),
            r"all_gather\(axis=1\): the values have 1 axis": lambda: in_run(
                strategy, lambda x: context().all_gather(x, 1), pair),
            r"all_reduce received values of different shapes.*axis=0": lambda: in_run(
                strategy, lambda x: context().all_reduce(SUM, x), slices),
            "reduce: the operation is .* Received: None": lambda: strategy.reduce(None, pair, None),
            "experimental_distribute_dataset takes a tf.data.Dataset": lambda:
                strategy.experimental_distribute_dataset([1, 2]),
            "It is distributed already": lambda: strategy.experimental_distribute_dataset(data),
            r"dataset_fn\(context\) returns a tf.data.Dataset of batches. Received: None": lambda:
                strategy.distribute_datasets_from_function(lambda _: None),
            "dataset_fn is a function": lambda: strategy.distribute_datasets_from_function(numbers(3)),
            "The two structures don't have the same": lambda: strategy.experimental_distribute_values_from_function(
                lambda each: [1.0] * (1 + each.replica_id_in_sync_group)),
            r"args is a tuple of the function's .*Received: a tensor.*args=\(value,\)": lambda: strategy.run(
                double, args=tf.ones([2])),
            "args is a tuple .* Received: PerReplica": lambda: strategy.run(double, args=pair),
            "kwargs is a dict of the function's": lambda: strategy.run(double, kwargs=[("x", 1.0)]),
            r"fn is a function. Received: 4\.0. Pass the function itself": lambda: strategy.run(double(2.0)),
            "plan.fn.: fn is a function": lambda: strategy.plan(3),
        }  # fmt: skip
        for words, call in wrong.items():
            with pytest.raises(ValueError, match=words):
                call()
        with pytest.raises(TypeError, match=r"double: missing a required argument: 'x'. It is double\(x"):
            strategy.run(double)


def test_structures_and_what_libraries_call_are_as_under_tensorflow(mirrored):
    """Nested local results; reduce and gather in a function that merge_call calls; a function without a signature."""
    x = np.arange(6.0).reshape(3, 2)
    calls = {
        "sum": lambda own, part: own.reduce(SUM, part, axis=0), "mean": lambda own, part: own.reduce(MEAN, part, 0),
        "rows": lambda own, part: own.gather(part, axis=0), "both": lambda own, part: own.reduce(SUM, part, (0, 1)),
    }  # fmt: skip
    with replicas(count=2) as ours:
        found = []
        for strategy in (mirrored, ours):
            data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(x).batch(3))
            batch = next(iter(data))
            values = [merged(strategy, call, batch) for call in calls.values()]
            nested = strategy.experimental_local_results({"batch": batch, "plain": 1.0})
            largest = strategy.experimental_local_results(strategy.run(max, args=(1, 2)))
            first = [strategy.experimental_local_results(value)[0] for value in values]
            found.append((*first, *tf.nest.flatten(nested), largest[0]))
        assert [np.asarray(each).tolist() for each in found[1]] == [np.asarray(each).tolist() for each in found[0]]
