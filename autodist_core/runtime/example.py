"""A session with the example step, for the examples of docstrings.

In: a strategy builder. Out: a session over two replicas of this machine, in which the variables of the step that
`autodist_core.capture.example` captures have values, and the step:

>>> from autodist_core.strategy import PS
>>> session, train = example_session(PS())
>>> loss, norm = train([example_batch(5)], total=5)
>>> round(float(loss), 1)
9.0
>>> session.close()
"""

import functools
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.capture.example import example_step
from autodist_core.cluster.on_node.server import server_config
from autodist_core.give_back import give_back
from autodist_core.kernel import Tasks
from autodist_core.kernel.example import example_placement
from autodist_core.runtime.local.session import LocalSession
from autodist_core.runtime.protocol import SessionStep
from autodist_core.strategy import StrategyBuilder

ONE_SERVER = Tasks("localhost", ("localhost",))
"""The tasks of the example cluster."""


@functools.cache
def example_cluster() -> Any:
    """Return a cluster of one server in this process, which has two CPU devices and is never lost.

    >>> example_cluster().lost.done()
    False
    """
    server = tf.distribute.Server.create_local_server(server_config(ONE_SERVER.job, 2))
    # By its name, TensorFlow would reach the server without a message, and the server would write to the memory it got.
    target = server.target.replace("localhost", "127.0.0.1")
    return SimpleNamespace(target=target, lost=Future(), sessions=[], give_back=give_back, server=server)


def example_values() -> dict[str, np.ndarray]:
    """Return values of the step's variables to begin with.

    >>> example_values()["kernel"].tolist()
    [[1.0], [1.0], [1.0]]
    """
    kernel: np.ndarray = np.ones((3, 1), "float32")
    return {"kernel": kernel, "velocity": 0 * kernel, "iterations": np.array(0), "total": np.array(0, "float32")}


def example_batch(total: int) -> np.ndarray:
    """Return a batch of so many examples.

    >>> example_batch(2).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    return np.ones((total, 3), "float32")


def example_session(builder: StrategyBuilder) -> tuple[LocalSession, SessionStep]:
    """Return a session in which the step trains. The module's docstring has an example."""
    session = LocalSession(example_placement(builder, tasks=Tasks(one_cpu=True)))
    step = session.add(example_step())
    session.load(example_values())
    return session, step
