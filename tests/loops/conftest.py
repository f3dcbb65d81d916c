"""TensorFlow's graph optimizer is off, but in modules that train by steps of all kinds, in all ways to call them."""

import pytest
import tensorflow as tf

from tests.support.graph_optimizer import off_where

WITH_OPTIMIZER = {
    "test_distribute", "test_original_cases", "test_over_hosts", "test_own_writes", "test_random_draws",
    "test_traced_epoch",
}  # fmt: skip

without_graph_optimizer = off_where(lambda module: module not in WITH_OPTIMIZER)


@pytest.fixture(scope="module")
def mirrored():
    """TensorFlow's own strategy."""
    across = tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=across)
