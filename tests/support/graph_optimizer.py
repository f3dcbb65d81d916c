"""TensorFlow's graph optimizer, off where it is not the matter: it takes a quarter of the time of a small training."""

from collections.abc import Callable
from typing import Any

import pytest


def off_where(chosen: Callable[[str], bool]) -> Any:
    """A fixture for a folder's `conftest.py` that switches the optimizer off in the modules whose name is chosen."""

    @pytest.fixture(autouse=True)
    def without_graph_optimizer(request: pytest.FixtureRequest) -> Any:
        import tensorflow as tf

        off = chosen(request.module.__name__.rpartition(".")[2])
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": off})
        yield
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})

    return without_graph_optimizer
