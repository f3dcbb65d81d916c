"""What the methods of a strategy with tf.distribute's methods say of arguments that they do not take."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.distributed import MEAN, SUM, numbers, replicas

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
