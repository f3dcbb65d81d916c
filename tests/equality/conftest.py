"""TensorFlow's graph optimizer is off where whole matrices of models train, since it takes a quarter of their time.

Equality with one device is tested with it in `test_one_replica.py` here, and in `front/`, `kernel/` and `cluster/`.
"""

import pytest

WITH_OPTIMIZER = {"test_one_replica"}


@pytest.fixture(autouse=True)
def without_graph_optimizer(request):
    import tensorflow as tf

    off = request.module.__name__.rpartition(".")[2] not in WITH_OPTIMIZER
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": off})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
