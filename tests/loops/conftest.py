"""TensorFlow's graph optimizer is off where many combinations train, since it takes a quarter of their time."""

import pytest

WITHOUT_OPTIMIZER = {"test_matrix"}


@pytest.fixture(autouse=True)
def without_graph_optimizer(request):
    import tensorflow as tf

    off = request.module.__name__.rpartition(".")[2] in WITHOUT_OPTIMIZER
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": off})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
