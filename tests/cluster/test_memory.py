"""The memory of the program while machines train, and when it has the state again."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.runtime.recovery.on_disk import OnDisk
from autodist_keras import DistributedModel
from tests.cluster.over_hosts import nothing_left
from tests.conftest import OF_KERAS
from tests.support.compare import assert_same, in_order

WIDTH = 400
STATE = 2 * 8 * WIDTH**2
"""The bytes of the kernel and of its momentum. Each of them has more than 1 MiB."""


def held(model: keras.Model) -> int:
    """The bytes that TensorFlow has in this process for a model's variables, read in a way of which nobody is told."""
    variables = [each.value for each in (*model.weights, *model.optimizer.variables)]
    values = [tf.raw_ops.ReadVariableOp(resource=vars(each)["_handle"], dtype=each.dtype) for each in variables]
    return sum(value.shape.num_elements() * value.dtype.size for value in values)


def made() -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH, use_bias=False)])
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


class Measures(keras.callbacks.Callback):
    """Measures after each step; after the first epoch, looks at the kernel and halves it."""

    def __init__(self):
        super().__init__()
        self.found = []

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(held(self.model))

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.looked = in_order(self.model.weights)
            self.model.weights[0].assign(self.looked["0"] / 2)


@pytest.mark.usefixtures("float64")
@pytest.mark.filterwarnings(OF_KERAS)
def test_the_program_has_no_state_while_machines_have_it(network, known_hosts, monkeypatch):
    monkeypatch.setattr(OnDisk, "most_in_memory", 0)
    random = np.random.default_rng(3)
    x, y = random.normal(size=(2, 8, WIDTH))
    alone, model, of_one, measures = made(), made(), Measures(), Measures()
    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    alone.fit(x, y, callbacks=[of_one], **options)
    alone.fit(x, y, **options)
    with DistributedModel(model, network.pair(), "AllReduce") as dm:
        dm.fit(x, y, callbacks=[measures], **options)
        assert len(measures.found) == 4
        # The agents have described their machines.
        assert [each.verdict for each in dm.plan(x[:4], y[:4]).table.memory] == ["fits"] * 2
        assert max(measures.found) < 0.01 * STATE < STATE <= held(model)
        assert_same(of_one.looked, measures.looked)
        # The agent of the program's machine has freed its copies by now, and gets them again.
        dm.evaluate(x, y, batch_size=4, verbose=0)
        dm.fit(x, y, **options)
        assert_same(
            in_order(alone.weights, alone.optimizer.variables), in_order(model.weights, model.optimizer.variables)
        )
    assert nothing_left(network) == []
