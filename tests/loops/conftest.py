"""What several tests of loops compare with."""

import pytest
import tensorflow as tf


@pytest.fixture(scope="module")
def mirrored():
    """TensorFlow's own strategy."""
    across = tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=across)
