"""What every test shares: quiet TensorFlow, and a Keras that no earlier test has touched."""

import os
import sys

# Both are read when TensorFlow and Keras are imported: once in this process, and after this file.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import pytest


@pytest.fixture(autouse=True)
def fresh_keras():
    """Give each test Keras's defaults and the same seeds, whatever ran before; imports nothing by itself."""
    reset_keras()
    yield
    reset_keras()


def reset_keras():
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "utils"):
        return
    keras.utils.clear_session(free_memory=False)
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(0)


@pytest.fixture
def float64():
    """Make Keras compute in float64 within the test, where wrong averaging cannot hide behind rounding."""
    import keras

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
