"""Loops with tf.distribute's methods: on replicas against TensorFlow's own strategy of one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import autodist_core
from autodist_core import ResourceSpec, SessionError
from autodist_core.errors import CaptureError
from tests.support.compare import assert_same
from tests.support.loops import SEED
from tests.support.strategies import strategy_named

EXACT = (
    "PS", "PSLoadBalancing", "PartitionedPS", "UnevenPartitionedPS", "AllReduce", "PartitionedAR",
    "RandomAxisPartitionAR", "Parallax",
)  # fmt: skip
BATCH, EXAMPLES = 8, 29
"""Batches of 8, 8, 8 and 5 examples: no three replicas have slices of one size."""
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


@contextmanager
def replicas(strategy: Any = "PS", count: int = 3, **settings: Any) -> Iterator[Any]:
    """A strategy on so many logical CPUs, each with a memory of its own."""
    spec, settings = ResourceSpec.local(cpus=count), {"share_memory": False, **settings}
    made = autodist_core.distribute(spec, strategy_named(strategy), **settings)
    try:
        yield made
    finally:
        made.autodist.close()


def dataset() -> tf.data.Dataset:
    """Examples with five features and one of three classes."""
    random = np.random.default_rng(3)
    x, y = random.normal(size=(EXAMPLES, 5)), random.integers(0, 3, size=EXAMPLES)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def by_hand(variables: list[Any], gradients: list[Any]) -> None:
    """Gradient descent without an optimizer."""
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(0.1 * gradient)


def numbers(count: int, batch: int = 0) -> tf.data.Dataset:
    """The numbers from 1 on, in one batch or in several."""
    return tf.data.Dataset.from_tensor_slices(np.arange(1.0, count + 1)).batch(batch or count)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0),
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "AdagradV1": lambda: tf.compat.v1.train.AdagradOptimizer(0.1),
    "by hand": lambda: None,
}


def loop(strategy: Any, optimizer: str, traced: bool) -> dict[str, Any]:
    """Two epochs of a classifier whose replicas divide by the global batch, as tf.distribute's users do."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(SEED)
    with strategy.scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7, "tanh"), keras.layers.Dense(3)])
        made, accuracy = OPTIMIZERS[optimizer](), keras.metrics.SparseCategoricalAccuracy()
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def step(inputs: Any) -> Any:
        x, y = inputs
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = tf.nn.compute_average_loss(losses(y, predicted), global_batch_size=BATCH)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        if made is None:
            by_hand(variables, gradients)
        elif isinstance(made, keras.optimizers.Optimizer):
            made.apply_gradients(zip(gradients, variables, strict=True))
        else:
            made.apply_gradients(zip(gradients, [variable.value for variable in variables], strict=True))
        accuracy.update_state(y, predicted)
        return loss

    def epoch(batches: Any) -> Any:
        total = 0.0
        for batch in batches:
            total += strategy.reduce(SUM, strategy.run(step, args=(batch,)), axis=None)
        return total

    run = tf.function(epoch) if traced else epoch
    found: dict[str, Any] = {}
    for number in range(2):
        found[f"loss {number}"] = np.asarray(run(strategy.experimental_distribute_dataset(dataset())))
        found[f"accuracy {number}"] = accuracy.result().numpy()
        accuracy.reset_state()
    variables = model.variables + (made.variables if isinstance(made, keras.optimizers.Optimizer) else [])
    return found | {f"{index} {variable.path}": variable.numpy() for index, variable in enumerate(variables)}


@pytest.fixture(scope="module")
def alone() -> Callable[[str], dict[str, Any]]:
    """The loop on one device, by optimizer."""
    known: dict[str, dict[str, Any]] = {}

    def found(optimizer: str) -> dict[str, Any]:
        if optimizer not in known:
            # The default strategy: TensorFlow's own of one device takes no optimizer of compat.v1 in eager mode.
            known[optimizer] = loop(tf.distribute.get_strategy(), optimizer, False)
        return known[optimizer]

    return found


@pytest.fixture(autouse=True)
def in_float64():
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx(before)


@pytest.mark.quick("eager-Adam", "eager-AdagradV1", "traced-SGD")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_an_epoch_equals_one_device(alone, optimizer: str, traced: bool):
    with replicas("PS") as strategy:
        assert_same(loop(strategy, optimizer, traced), alone(optimizer))


@pytest.mark.quick("AllReduce", "PartitionedPS")
@pytest.mark.parametrize("name", EXACT)
def test_every_exact_strategy(alone, name: str):
    with replicas(name, count=2) as strategy:
        assert_same(loop(strategy, "SGD", True), alone("SGD"))


def test_an_optimizer_that_was_made_outside_the_scope_is_refused():
    weight, optimizer = keras.Variable(1.0), keras.optimizers.SGD(0.125)
    with replicas(count=2) as strategy:

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(x * weight)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

        batch = next(iter(strategy.experimental_distribute_dataset(numbers(4))))
        with pytest.raises(CaptureError, match="step uses a Keras optimizer that was made outside"):
            strategy.run(step, args=(batch,))
        assert float(weight) == 1.0


def test_the_loop_of_the_documentation_of_tf_distribute():
    """The epoch begins its total with a plain 0, and is called several times; each of them trains."""
    weight = tf.Variable(0.0, dtype=tf.float64)
    with replicas("Parallax", count=2) as my_strategy, my_strategy.scope():

        @tf.function
        def distribute_train_epoch(dataset):
            def replica_fn(input):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum((input * weight - 2 * input) ** 2) / 4
                weight.assign_sub(0.05 * tape.gradient(loss, weight))
                return loss

            total_result = 0
            for x in dataset:
                per_replica_result = my_strategy.run(replica_fn, args=(x,))
                total_result += my_strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_result, axis=None)
            return total_result

        data = np.arange(1.0, 9.0)
        batches = tf.data.Dataset.from_tensor_slices(data).batch(4)
        dist_dataset = my_strategy.experimental_distribute_dataset(batches)
        found = [float(distribute_train_epoch(dist_dataset)) for _ in range(3)]
    expected, value = [], 0.0
    for _ in range(3):
        total = 0.0
        for batch in (data[:4], data[4:]):
            total += float(np.sum((batch * value - 2 * batch) ** 2) / 4)
            value -= 0.05 * float(np.sum(2 * batch * (batch * value - 2 * batch)) / 4)
        expected.append(total)
    assert_same({"losses": np.array(found), "weight": weight.numpy()}, {
        "losses": np.array(expected), "weight": np.array(value)
    })


def test_what_a_function_finds_inside():
    with replicas(count=3) as strategy:

        def inside(x):
            context = tf.distribute.get_replica_context()
            number = tf.cast(context.replica_id_in_sync_group, x.dtype)
            total, mean = context.all_reduce("SUM", tf.reduce_sum(x)), context.all_reduce(MEAN, number)
            return number, total, mean, context.num_replicas_in_sync

        batch = next(iter(strategy.experimental_distribute_dataset(numbers(7))))
        number, total, mean, count = strategy.run(inside, args=(batch,))
        assert [int(each) for each in strategy.experimental_local_results(number)] == [0, 1, 2]
        assert [float(each) for each in total.values] == [28.0] * 3
        assert [float(each) for each in mean.values] == [1.0] * 3
        assert [int(each) for each in strategy.experimental_local_results(count)] == [3] * 3
        assert strategy.num_replicas_in_sync == 3



def test_results_are_looked_at_reduced_and_gathered():
    with replicas(count=3) as strategy:
        batch = next(iter(strategy.experimental_distribute_dataset(numbers(7))))
        doubled = strategy.run(lambda x: 2 * x, args=(batch,))
        assert [each.numpy().tolist() for each in strategy.experimental_local_results(doubled)] == [
            [2.0, 4.0, 6.0], [8.0, 10.0], [12.0, 14.0]
        ]  # fmt: skip
        assert strategy.gather(doubled, axis=0).numpy().tolist() == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]
        assert strategy.reduce(SUM, doubled, axis=0).numpy().item() == 56.0
        assert strategy.reduce(MEAN, doubled, axis=0).numpy().item() == 8.0
        sums = strategy.run(lambda x: {"sum": tf.reduce_sum(x), "none": None}, args=(batch,))
        assert sums["none"] is None
        assert strategy.reduce("SUM", sums["sum"], axis=None).numpy().item() == 28.0
        assert strategy.reduce(MEAN, sums["sum"], axis=None).numpy().item() == pytest.approx(28 / 3, rel=1e-15)
        with pytest.raises(ValueError, match="SUM or MEAN"):
            strategy.reduce("MAX", doubled, axis=0)
        with pytest.raises(ValueError, match="not a value of each replica"):
            strategy.reduce(SUM, tf.constant(1.0), axis=None)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_replicas_without_examples_count_nothing(traced: bool):
    with replicas(count=3) as strategy:

        def total(batches):
            found = tf.constant(0.0, tf.float64)
            for batch in batches:
                found += strategy.reduce(SUM, strategy.run(tf.reduce_sum, args=(batch,)), axis=None)
                found += strategy.reduce(SUM, strategy.run(lambda x: x, args=(batch,)), axis=0)
            return found

        batches = strategy.experimental_distribute_dataset(numbers(5, 4))
        assert (tf.function(total) if traced else total)(batches).numpy().item() == 30.0


def regularized(strategy: Any) -> dict[str, Any]:
    """TensorFlow's guide with a penalty, in which the last batch has fewer examples than there are replicas."""
    weight = tf.Variable(np.linspace(-1.0, 1.0, 5), name="weight")

    def step(x: Any) -> Any:
        total = tf.distribute.get_replica_context().all_reduce(SUM, tf.reduce_sum(weight) + 1.0)
        with tf.GradientTape() as tape:
            penalties = [0.1 * tf.reduce_sum(weight**2), 0.01 * tf.reduce_sum(tf.abs(weight))]
            loss = tf.nn.compute_average_loss(tf.linalg.matvec(x, weight) ** 2, global_batch_size=BATCH)
            loss += tf.nn.scale_regularization_loss(tf.add_n(penalties))
        gradient = tape.gradient(loss, weight)
        norm = tf.norm(gradient)
        weight.assign_sub(0.1 * gradient)
        return loss, norm, tf.reduce_sum(weight), total / strategy.num_replicas_in_sync

    found = []
    features = dataset().unbatch().take(BATCH + 2).map(lambda x, y: x).batch(BATCH)
    for batch in strategy.experimental_distribute_dataset(features):
        loss, *alike = strategy.run(step, args=(batch,))
        found += [strategy.reduce(SUM, loss, None), *(strategy.reduce(MEAN, value, None) for value in alike)]
    return {"found": np.stack(found), "weight": weight.numpy()}


@pytest.mark.parametrize("name", ["PS", "AllReduce"])
def test_replicas_without_examples_count_what_is_the_same_on_all(name: str):
    with replicas(name, count=3) as strategy:
        assert_same(regularized(tf.distribute.get_strategy()), regularized(strategy))


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_datasets_from_a_function_have_a_batch_for_each_replica(traced: bool):
    contexts = []

    def made(context):
        contexts.append((context.num_replicas_in_sync, context.get_per_replica_batch_size(4)))
        return numbers(5, 2)

    with replicas(count=2) as strategy:

        def sums(batches):
            found = tf.zeros([0], tf.float64)
            for batch in batches:
                each = strategy.run(tf.reduce_sum, args=(batch,))
                found = tf.concat([found, tf.stack(strategy.experimental_local_results(each))], 0)
                if traced:
                    found = tf.ensure_shape(found, [None])
            return found

        def folded(batches):
            return batches.reduce(
                tf.zeros([], tf.float64),
                lambda total, batch: total + strategy.reduce(SUM, strategy.run(tf.reduce_sum, args=(batch,)), None),
            )

        batches = strategy.distribute_datasets_from_function(made)
        if traced:
            assert tf.function(folded)(batches).numpy().item() == 15.0
        else:
            assert sums(batches).numpy().tolist() == [3.0, 7.0, 5.0, 0.0]
            assert folded(batches).numpy().item() == 15.0
    assert contexts == [(2, 2)]


def test_values_of_each_replica_are_arguments():
    with replicas(count=3) as strategy:
        own = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(10.0 * context.replica_id_in_sync_group)
        )
        found = strategy.run(lambda value, offset: value + offset, args=(own,), kwargs={"offset": tf.constant(1.0)})
        assert [each.numpy().item() for each in found.values] == [1.0, 11.0, 21.0]
        again = strategy.run(lambda value: 2 * value, args=(found,))
        assert [each.numpy().item() for each in again.values] == [2.0, 22.0, 42.0]
        alike = strategy.run(lambda: tf.constant(3))
        assert [each.numpy().item() for each in alike.values] == [3, 3, 3]


def test_a_trace_sees_and_changes_the_variables_between_runs():
    weight = tf.Variable(1.0, dtype=tf.float64)
    with replicas(count=2) as strategy:

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(x * weight)
            weight.assign_sub(0.125 * tape.gradient(loss, weight))
            return loss

        @tf.function
        def twice(batches):
            seen = tf.TensorArray(tf.float64, 0, dynamic_size=True)
            for batch in batches:
                strategy.run(step, args=(batch,))
                seen = seen.write(seen.size(), weight.read_value())
                weight.assign_add(0.5)
            return seen.stack()

        batches = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(np.ones(8)).batch(4))
        assert twice(batches).numpy().tolist() == [0.5, 0.5]
        assert weight.numpy().item() == 1.0
        weight.assign(3.0)
        assert twice(batches).numpy().tolist() == [2.5, 2.5]


def test_a_failing_step_leaves_the_state_and_the_loop_goes_on():
    weight = tf.Variable(1.0, dtype=tf.float64)
    with replicas("AllReduce", count=2) as strategy:

        def step(x):
            tf.debugging.assert_positive(x, message="no negative numbers")
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(x * weight)
            weight.assign_sub(0.125 * tape.gradient(loss, weight))
            return loss

        good = next(iter(strategy.experimental_distribute_dataset(numbers(4))))
        bad = next(iter(strategy.experimental_distribute_dataset(numbers(4).map(lambda x: 2.0 - x))))
        strategy.run(step, args=(good,))
        assert weight.numpy().item() == -0.25
        with pytest.raises(tf.errors.InvalidArgumentError, match="no negative numbers"):
            strategy.run(step, args=(bad,))
        gathered = tf.function(
            lambda batch: strategy.run(
                lambda x: tf.distribute.get_replica_context().all_gather(tf.reduce_sum(x), 0), args=(batch,)
            ),
            autograph=False,
        )
        with pytest.raises(CaptureError, match="Give it an axis"):
            gathered(good)
        assert weight.numpy().item() == -0.25
        strategy.run(step, args=(good,))
        assert weight.numpy().item() == -1.5


def test_a_function_uses_tensors_of_the_trace_around_it():
    weight = tf.Variable(np.ones(3), name="weight")
    kept = []
    with replicas(count=2) as strategy:

        @tf.function
        def epoch(batches, rate, offsets):
            total, scaled = tf.constant(0.0, tf.float64), 2.0 * rate
            for batch in batches:

                def step(x):
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_sum(x[:, tf.newaxis] * (weight + offsets)) * total  # noqa: B023 - this round's tensor
                    weight.assign_sub(scaled * tape.gradient(loss, weight))
                    return tf.reduce_sum(x)

                total += strategy.reduce(SUM, strategy.run(step, args=(batch,)), axis=None)
            return total

        for rate in (0.125, 0.25):
            weight.assign(np.ones(3))
            batches = strategy.experimental_distribute_dataset(numbers(5, 3))
            assert float(epoch(batches, tf.constant(rate, tf.float64), tf.zeros(3, tf.float64))) == 15.0
            assert weight.numpy().tolist() == [1.0 - 2.0 * rate * 9.0 * 6.0] * 3

        @tf.function
        def keeping(x):
            kept.append(x)
            return strategy.run(lambda: kept[0] + 1.0)

        assert float(keeping(tf.constant(1.0)).values[1]) == 2.0
        with pytest.raises(CaptureError, match=r"uses 'x:0' of a traced function.*run\(fn, args"):
            strategy.run(lambda: kept[0] + 1.0)
        with pytest.raises(CaptureError, match=r"uses 'x:0' of a traced function"):
            keeping(tf.constant([1.0]))


class Count:
    """How often a function was traced."""

    value = 0


def test_a_function_that_is_made_anew_for_each_call_is_traced_once():
    traces = Count()
    with replicas(count=2) as strategy:
        batch = next(iter(strategy.experimental_distribute_dataset(numbers(4))))

        def counted(x, factor):
            traces.value += 1
            return x * factor

        def multiplied(factor):
            return lambda x: counted(x, factor)

        def total(function):
            return strategy.reduce(SUM, strategy.run(function, args=(batch,)), axis=0).numpy().item()

        assert [total(lambda x: counted(x, 2.0)) for _ in range(20)] == [20.0] * 20
        assert traces.value == 1
        assert [total(multiplied(factor)) for factor in (3.0, 4.0, 3.0, 4.0)] == [30.0, 40.0, 30.0, 40.0]
        assert traces.value == 3
        array, numbers_in_a_list = np.array(1.0), [5.0]
        for value in (1.0, 2.0):
            array[...] = numbers_in_a_list[0] = value
            assert total(lambda x: counted(x, array.item())) == 10.0 * value
            assert total(lambda x: counted(x, *numbers_in_a_list)) == 10.0 * value


def test_a_function_inside_a_trace_sees_what_keras_keeps_for_each_thread():
    seen = []

    def draw():
        seen.append(keras.config.dtype_policy().name)
        return keras.random.normal((3,))

    def drawn(traced):
        keras.utils.set_random_seed(SEED)
        with replicas(count=2) as strategy:
            run = tf.function(lambda: strategy.run(draw)) if traced else lambda: strategy.run(draw)
            return strategy.experimental_local_results(run())[0].numpy().tolist()

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        eager, traced = drawn(False), drawn(True)
    finally:
        keras.config.set_dtype_policy(before)
    assert set(seen) == {"mixed_bfloat16"}
    assert eager == traced


def test_rows_of_all_replicas_inside_run():
    """Scores of each example with the whole batch: every replica has its own rows of them, and all columns."""
    random = np.random.default_rng(5)
    x, start = random.normal(size=(7, 4)), random.normal(size=(4, 3))

    def train(weight, batch, gather):
        with tf.GradientTape() as tape:
            own = tf.tanh(batch @ weight)
            scores = tf.matmul(own, gather(own), transpose_b=True)
            loss = tf.reduce_sum(tf.reduce_logsumexp(scores, axis=1)) / len(x)
        weight.assign_sub(0.5 * tape.gradient(loss, weight))
        return scores

    plain, weight = tf.Variable(start), tf.Variable(start)
    for _ in range(2):
        expected = train(plain, tf.constant(x), lambda own: own)
    with replicas(count=3) as strategy:
        data = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(x).repeat(2))
        context = tf.distribute.get_replica_context
        for batch in data:
            scores = strategy.run(train, args=(weight, batch, lambda own: context().all_gather(own, 0)))
        per_replica = strategy.experimental_local_results(
            strategy.run(lambda x: context().all_gather(x, axis=1), args=(tf.constant([[1.0, 2.0]]),))
        )
    assert_same(
        {"weight": weight.numpy(), "scores": strategy.gather(scores, 0).numpy()},
        {"weight": plain.numpy(), "scores": expected.numpy()},
    )
    assert per_replica[0].numpy().tolist() == [[1.0, 2.0] * 3]


def test_a_cluster_of_run_does_not_shrink():
    with pytest.raises(ValueError, match=r"distribute\(on_failure='shrink'\) is not supported.*Use 'restart'"):
        autodist_core.distribute({"nodes": [{"address": "localhost", "cpus": [0, 1]}]}, on_failure="shrink")


def test_what_is_refused_says_what_to_do():
    variable = tf.Variable(1.0)
    with replicas(count=2) as strategy:
        batch = next(iter(strategy.experimental_distribute_dataset(numbers(4))))
        context = tf.distribute.get_replica_context
        refused = {
            "Give it an axis": lambda x: context().all_gather(tf.reduce_sum(x), 0),
            "SUM or MEAN": lambda x: context().all_reduce("MAX", x),
        }
        for words, function in refused.items():
            with pytest.raises((CaptureError, ValueError), match=words):
                strategy.run(function, args=(batch,))
        with pytest.raises(CaptureError, match="variables are plain ones"), strategy.scope():
            strategy.extended.update(variable, lambda value: value.assign(2.0))

        def merged(x):
            return context().merge_call(lambda own, part: own.reduce(SUM, part, axis=None), args=(tf.reduce_sum(x),))

        assert [float(each) for each in strategy.run(merged, args=(batch,)).values] == [10.0, 10.0]
        ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1.0], [2.0, 3.0]])).batch(2)
        with pytest.raises(ValueError, match=r"RaggedTensor.*to_tensor"):
            next(iter(strategy.experimental_distribute_dataset(ragged)))
        with pytest.raises(NotImplementedError, match=r"get_next_as_optional.*next\(iterator\)"):
            iter(strategy.experimental_distribute_dataset(numbers(4))).get_next_as_optional()
        with pytest.raises(NotImplementedError, match="no TPU here"):
            strategy.experimental_assign_to_logical_device(tf.constant(1.0), 0)
        with pytest.raises(ValueError, match="batch the dataset"):
            list(strategy.experimental_distribute_dataset(tf.data.Dataset.range(3)))
        unbatched = tf.data.Dataset.from_tensor_slices((np.ones((4, 5)), np.ones((4, 3))))
        with pytest.raises(ValueError, match=r"3 and 5 rows.*batch the dataset"):
            list(strategy.experimental_distribute_dataset(unbatched))
        with pytest.raises(SessionError, match="is called while"):
            strategy.run(lambda x: strategy.run(tf.reduce_sum, args=(x,)), args=(batch,))


def test_the_plan_of_a_function():
    weight = tf.Variable(tf.zeros([3, 2]), name="weight")
    with replicas("PS", count=2) as strategy:

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(x @ weight)
            weight.assign_sub(tape.gradient(loss, weight))

        plan = strategy.plan(step, args=(tf.ones([4, 3]),))
        assert "weight : f32[3,2]  ps(localhost:CPU:0)" in plan and plan.startswith("strategy ")
        assert weight.numpy().tolist() == [[0.0, 0.0]] * 3


def test_the_cluster_resolver_is_attached():
    cluster = tf.train.ClusterSpec({"worker": ["localhost:2222"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="worker", task_id=0)
    strategy = autodist_core.distribute(ResourceSpec.from_cluster_resolver(resolver, gpus=0))
    assert strategy.cluster_resolver is resolver
    assert autodist_core.distribute(ResourceSpec.local(cpus=2)).cluster_resolver is None
