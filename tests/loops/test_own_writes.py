"""What functions write besides their updates, and how it counts: right, or refused with the remedy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.compare import assert_same
from tests.support.distributed import replicas
from tests.support.loops import assert_equal_loops, autodist, descend


def test_a_function_may_not_write_of_the_batch_what_another_one_trains():
    weight = tf.Variable(2.0, dtype=tf.float64)
    with autodist(replicas=2) as front:

        @front.function
        def train(x):
            descend(lambda: tf.reduce_mean(x * weight), weight, 0.5)

        bump = front.function(lambda x: weight.assign_add(tf.reduce_mean(x)))
        train(np.ones(4))
        with pytest.raises(CaptureError, match="writes 'Variable', which another marked function updates, and what it"):
            bump(np.ones(4))
        with pytest.raises(CaptureError, match="which another marked function updates"):
            bump.plan(np.ones(4))
        assert float(weight) == 1.5
        train(np.ones(4))
        assert float(weight) == 1.0


def test_a_variable_is_not_written_a_value_for_each_example():
    kept = tf.Variable(tf.zeros(8, tf.float64))
    with autodist(replicas=2) as front:
        for add in (False, True):

            @front.function
            def keep(x, add=add):
                kept.assign_add(x) if add else kept.assign(2.0 * x)

            with pytest.raises(CaptureError, match=r"'Variable' is written .* with a value for each example .* return"):
                keep(np.ones(8))
    assert not kept.numpy().any()


@pytest.mark.parametrize("aggregation", [tf.VariableAggregation.NONE, tf.VariableAggregation.SUM])
def test_a_counter_of_integers_says_that_it_is_added_up(aggregation):
    right = tf.Variable(0, aggregation=aggregation)
    with autodist(replicas=3) as front:
        count = front.function(lambda x: right.assign_add(tf.reduce_sum(tf.cast(x > 2.0, tf.int32))))
        if aggregation == tf.VariableAggregation.NONE:
            with pytest.raises(CaptureError, match=r"counts what is in the batch.*VariableAggregation.SUM"):
                count(np.arange(7.0))
            assert int(right) == 0
        else:
            count(np.arange(7.0))
            count(np.arange(7.0))
            assert int(right) == 8


def test_rows_of_a_variable_are_not_written_in_place():
    counts = tf.Variable(tf.zeros(4, tf.float64))
    with autodist(replicas=2) as front:
        spread = front.function(lambda x: counts.scatter_add(tf.IndexedSlices(tf.ones_like(x), tf.cast(x, tf.int32))))
        with pytest.raises(CaptureError, match=r"written in place.*unsorted_segment_sum"):
            spread(np.array([0.0, 1.0, 1.0, 3.0]))


def _given_seeds(front):
    """The gradient of log-probabilities that the function weights by itself, as policy gradients are written."""
    weight = tf.Variable(np.array([0.3, -0.2, 0.5]))

    @front.function
    def step(x, advantage):
        with tf.GradientTape() as tape:
            scores = tf.math.log_sigmoid(tf.linalg.matvec(x, weight))
        by_mean = advantage / tf.cast(tf.shape(advantage)[0], tf.float64)
        weight.assign_add(0.1 * tape.gradient(scores, weight, output_gradients=by_mean))
        return tf.reduce_mean(scores)

    random = np.random.default_rng(5)
    found = [step(random.normal(size=(7, 3)), random.normal(size=7)) for _ in range(3)]
    return {"weight": weight.numpy(), "scores": [np.asarray(each) for each in found]}


def test_given_gradients_of_outputs_count_in_their_way():
    assert_equal_loops(_given_seeds, strategy="PS", replicas=3)


class Largest(keras.metrics.Metric):
    """Keeps the largest value."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_variable((), initializer="zeros", name="value")

    def update_state(self, values):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(values)))

    def result(self):
        return self.value


def test_a_metric_that_keeps_a_maximum_keeps_it():
    metric, total, kept = Largest(), keras.metrics.Sum(), tf.Variable(0.0, dtype=tf.float64)
    with autodist(replicas=3) as front:
        look = front.function(lambda x: metric.update_state(x))
        assert "not exact" not in look.plan(np.ones(3))
        look(np.array([1.0, 5.0, 2.0, 4.0, 3.0]))
        assert float(metric.result()) == 5.0
        look(np.array([1.0, 2.0, 7.0]))
        assert float(metric.result()) == 7.0
        front.function(lambda x: total.update_state(x))(np.ones(3))
        keep = front.function(lambda: (kept.assign(total.total + 5.0), total.reset_state())[0])
        assert float(keep()) == 8.0 and "not exact" not in keep.plan()
    with replicas(count=2) as strategy:
        each = strategy.experimental_distribute_values_from_function(lambda context: tf.ones(2, tf.float64))
        assert "not exact" not in strategy.plan(lambda x: metric.update_state(x), args=(each,))


def test_positions_are_no_rows():
    with autodist(replicas=2) as front, pytest.raises(CaptureError, match="not known how the replicas' values"):
        front.function(lambda x: tf.range(tf.shape(x)[0]))(np.ones(5))


def test_replicas_may_have_batches_of_different_widths():
    with replicas(count=2) as strategy:
        own = strategy.experimental_distribute_values_from_function(
            lambda context: tf.ones([3, 2 + context.replica_id_in_sync_group], tf.float64)
        )
        widths = strategy.run(lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[1], x.dtype), args=(own,))
        assert_same({"widths": np.array([float(each) for each in widths.values])}, {"widths": np.array([3.0, 3.0])})
        mixed = strategy.experimental_distribute_values_from_function(
            lambda context: tf.ones([3] * (1 + context.replica_id_in_sync_group))
        )
        with pytest.raises(CaptureError, match="different types or ranks"):
            strategy.run(tf.reduce_sum, args=(mixed,))
