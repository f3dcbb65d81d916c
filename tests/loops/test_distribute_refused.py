"""What a strategy with tf.distribute's methods refuses, with the line to write; its plan, and its resolver."""

import contextlib
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

import autodist_core
from autodist_core import ResourceSpec, SessionError
from autodist_core.errors import CaptureError, NotYetError
from autodist_keras import DistributedModel
from tests.support.compare import assert_same
from tests.support.distributed import SUM, numbers, replicas, replicas_on
from tests.support.loops import descend
from tests.support.machines import machines
from tests.support.models import stacked


def test_an_optimizer_that_was_made_outside_the_scope_is_refused():
    weight, optimizer = keras.Variable(1.0), keras.optimizers.SGD(0.125)
    with replicas_on(numbers(4)) as (strategy, batch):

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(x * weight)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

        with pytest.raises(CaptureError, match="step uses a Keras optimizer that was made outside"):
            strategy.run(step, args=(batch,))
        assert float(weight) == 1.0


def test_a_cluster_of_run_does_not_shrink():
    with pytest.raises(ValueError, match=r"distribute\(on_failure='shrink'\) is not supported.*Use 'restart'"):
        autodist_core.distribute({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}, on_failure="shrink")


def test_what_is_refused_says_what_to_do():
    with replicas_on(numbers(4)) as (strategy, batch):
        context = tf.distribute.get_replica_context
        refused = {
            "Give it an axis": lambda x: context().all_gather(tf.reduce_sum(x), 0),
            "SUM or MEAN": lambda x: context().all_reduce("MAX", x),
        }
        for words, function in refused.items():
            with pytest.raises((CaptureError, ValueError), match=words):
                strategy.run(function, args=(batch,))
        def merged(x):
            return context().merge_call(lambda own, part: own.reduce(SUM, part, axis=None), args=(tf.reduce_sum(x),))

        assert [float(each) for each in strategy.run(merged, args=(batch,)).values] == [10.0, 10.0]
        ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1.0], [2.0, 3.0]])).batch(2)
        with pytest.raises(ValueError, match=r"RaggedTensor.*to_tensor"):
            next(iter(strategy.experimental_distribute_dataset(ragged)))
        with pytest.raises(ValueError, match=r"has a tensor of int64 without axes.*batch the dataset"):
            list(strategy.experimental_distribute_dataset(tf.data.Dataset.range(3)))
        unbatched = tf.data.Dataset.from_tensor_slices((np.ones((4, 5)), np.ones((4, 3))))
        with pytest.raises(ValueError, match=r"3 and 5 rows.*batch the dataset"):
            list(strategy.experimental_distribute_dataset(unbatched))
        with pytest.raises(SessionError, match="is called while"):
            strategy.run(lambda x: strategy.run(tf.reduce_sum, args=(x,)), args=(batch,))


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_a_tape_around_run_is_refused_when_its_gradient_is_asked_for(traced: bool):
    weight = tf.Variable(2.0, dtype=tf.float64)
    ran = tf.Variable(0.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    with replicas_on(numbers(4)) as (strategy, batch):

        def loss_of(x):
            ran.assign_add(1.0)
            return tf.reduce_sum(x) * weight

        def around(batch, differentiate):
            with tf.GradientTape() as tape:
                loss = strategy.reduce(SUM, strategy.run(loss_of, args=(batch,)), axis=None)
            return tape.gradient(loss, weight) if differentiate else loss

        around = tf.function(around) if traced else around
        with pytest.raises(CaptureError, match=r"begun outside of loss_of .* call tape.gradient there"):
            around(batch, True)
        before = float(ran)
        assert before == (0.0 if traced else 1.0)
        assert float(around(batch, False)) == 20.0 and float(ran) == before + 1.0


def test_results_that_are_not_dense_are_refused_with_what_makes_them_dense():
    with replicas_on(numbers(4)) as (strategy, batch):
        makers = {
            r"RaggedTensor.*to_tensor\(\)": lambda x: tf.RaggedTensor.from_row_lengths(x, [tf.shape(x)[0]]),
            r"SparseTensor.*tf\.sparse\.to_dense": lambda x: tf.sparse.from_dense(x),
            r"IndexedSlices.*tf\.convert_to_tensor": lambda x: tf.IndexedSlices(x, tf.range(tf.shape(x)[0])),
        }
        for words, function in makers.items():
            with pytest.raises(CaptureError, match=words):
                strategy.run(function, args=(batch,))


def test_python_in_a_step_over_several_machines_is_refused_before_they_start():
    strategy = autodist_core.distribute(machines(1, 1))
    weight = tf.Variable(1.0, dtype=tf.float64)

    def step(x):
        squares = tf.map_fn(lambda each: tf.ensure_shape(tf.numpy_function(np.square, [each], tf.float64), []), x)
        descend(lambda: tf.reduce_sum(squares * weight), weight)

    with pytest.raises(CaptureError, match=r"calls Python .*several machines.*or train on one machine"):
        strategy.plan(step, args=(tf.ones([4], tf.float64),))
    strategy.autodist.close()


def test_the_plan_of_a_function():
    weight = tf.Variable(tf.zeros([3, 2]), name="weight")
    with replicas("PS", count=2) as strategy:

        def step(x):
            descend(lambda: tf.reduce_sum(x @ weight), weight)

        plan = strategy.plan(step, args=(tf.ones([4, 3]),))
        assert "weight : f32[3,2]  ps(localhost:CPU:0)" in plan and plan.startswith("strategy ")
        assert weight.numpy().tolist() == [[0.0, 0.0]] * 3


# In a training, replicas draw different numbers from a generator and the same from an explicit seed.
DRAWING = {
    "plain": lambda: lambda x: x,
    "dropout": lambda: partial(keras.layers.Dropout(0.1, dtype="float64"), training=True),
    "explicit": lambda: lambda x: x * tf.random.stateless_uniform(tf.shape(x), [1, 2], dtype=x.dtype),
}


@pytest.mark.parametrize("name", DRAWING)
def test_verify_compares_with_one_device(name: str):
    x = np.random.default_rng(2).normal(size=(5, 4))
    with replicas("PS", count=2) as strategy:
        with strategy.scope():
            weight, optimizer = tf.Variable(np.ones((4, 1)), name="weight"), keras.optimizers.Adam(0.1)
            drop = DRAWING[name]()
        start, batch = weight.numpy(), next(iter(strategy.experimental_distribute_dataset(
            tf.data.Dataset.from_tensors(x))))  # fmt: skip

        def step(x, size=None):
            x = drop(x)
            with tf.GradientTape() as tape:
                losses = (x @ weight - 1.0) ** 2
                loss = tf.reduce_mean(losses) if size is None else tf.reduce_sum(losses) / size
                loss += tf.nn.scale_regularization_loss(tf.reduce_sum(weight**2))
            context = tf.distribute.get_replica_context()
            gradient = context.all_reduce(SUM, tape.gradient(loss, weight)) / context.num_replicas_in_sync
            optimizer.apply_gradients([(gradient, weight)])

        equal = strategy.verify(step, args=(batch, 5), steps=2).splitlines()[-1]
        assert equal.startswith("verdict: equal to one device, up to rounding, in the")
        with pytest.raises(ValueError, match=r"differs from one device in weight.*a mean over its own examples"):
            strategy.verify(step, args=(batch,))
        assert weight.numpy().tolist() == start.tolist() and strategy.num_replicas_in_sync == 2


def test_a_layer_that_writes_a_trained_variable_trains_as_in_fit():
    """SpectralNormalization divides its kernel by its norm, before gradients are computed from the kernel."""
    x = np.random.default_rng(1).normal(size=(8, 3))

    def trained(run, scope):
        with scope:
            keras.utils.set_random_seed(1)
            layer = keras.layers.SpectralNormalization(keras.layers.Dense(2), name="spectral")
            model, optimizer = keras.Sequential([keras.Input((3,)), layer]), keras.optimizers.Adam(0.1)

            def step(x):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(model(x, training=True) ** 2) / 8
                variables = model.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

            for _ in range(3):
                run(step)
            return model.get_weights()

    expected = trained(lambda step: step(tf.constant(x)), contextlib.nullcontext())
    with replicas_on(tf.data.Dataset.from_tensors(x)) as (strategy, batch):
        actual = trained(lambda step: strategy.run(step, args=(batch,)), strategy.scope())
    for one, other in zip(expected, actual, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-12 * np.abs(one).max())


def test_a_counter_that_gradients_and_the_update_read():
    def trained(run):
        weight, count = tf.Variable(np.ones((4, 1))), tf.Variable(0.0, dtype=tf.float64)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)

        def step(x):
            count.assign_add(1.0)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((x @ weight - count) ** 2) / 4
            optimizer.apply_gradients([(tape.gradient(loss, weight) / count, weight)])

        for _ in range(2):
            run(step)
        return {"weight": weight.numpy(), "count": count.numpy()}

    x = np.random.default_rng(1).normal(size=(3, 4))
    with replicas_on(tf.data.Dataset.from_tensors(x)) as (strategy, batch):
        found = trained(lambda step: strategy.run(step, args=(batch,)))
    assert_same(trained(lambda step: step(tf.constant(x))), found)


def test_a_warning_names_a_method_that_the_strategy_has(caplog):
    highest = tf.Variable(0.0, dtype=tf.float64, aggregation=tf.VariableAggregation.MEAN, name="highest")
    with replicas_on(numbers(4)) as (strategy, batch):
        strategy.run(lambda x: highest.assign(tf.reduce_prod(x)), args=(batch,))
    (said,) = [record.getMessage() for record in caplog.records if "not exact" in record.getMessage()]
    assert said.endswith(". strategy.plan(fn, args) has all notes.") and hasattr(strategy, "plan")


def test_the_cluster_resolver_is_attached():
    cluster = tf.train.ClusterSpec({"worker": ["localhost:2222"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="worker", task_id=0)
    strategy = autodist_core.distribute(ResourceSpec.from_cluster_resolver(resolver, gpus=0))
    assert strategy.cluster_resolver is resolver
    assert autodist_core.distribute(ResourceSpec.local(cpus=2)).cluster_resolver is None


X, Y = np.ones((7, 3)), np.ones((7, 1))
LOOPS = {
    "fit": lambda model: model.fit(X, Y, verbose=0),
    "evaluate": lambda model: model.evaluate(X, Y, verbose=0),
    "predict": lambda model: model.predict(X, verbose=0),
    "train_on_batch": lambda model: model.train_on_batch(X, Y),
    "test_on_batch": lambda model: model.test_on_batch(X, Y),
    "predict_on_batch": lambda model: model.predict_on_batch(X),
}


def compiled() -> keras.Model:
    return stacked(keras.Input((3,)), keras.layers.Dense(1), name="small")


def test_keras_loops_are_refused_and_what_the_message_says_works():
    outside = compiled()
    outside.fit(X, Y, verbose=0)
    with replicas(count=2) as strategy:
        with strategy.scope():
            model = compiled()
        before = [weight.numpy() for weight in (*model.weights, *outside.weights, *outside.optimizer.variables)]
        for loop in LOOPS.values():
            with pytest.raises(NotYetError, match=r"fit.*`dm = autodist_keras.DistributedModel\(model"):
                loop(model)
            with strategy.scope(), pytest.raises(NotYetError, match="DistributedModel"):
                loop(outside)
        after = [weight.numpy() for weight in (*model.weights, *outside.weights, *outside.optimizer.variables)]
        np.testing.assert_equal(before, after)
        made_inside = DistributedModel(model, strategy.autodist.resource_spec, "PS")
        with pytest.raises(ValueError, match=r"'small' was made under the scope of a ReplicaStrategy"):
            made_inside.fit(X, Y, verbose=0)
        with DistributedModel(outside, strategy.autodist.resource_spec, "PS") as dm:
            with strategy.scope(), pytest.raises(ValueError, match=r"'small' is used under the scope"):
                dm.fit(X, Y, verbose=0)
            assert len(dm.fit(X, Y, verbose=0).epoch) == 1
    assert len(outside.fit(X, Y, verbose=0).epoch) == 1
