"""Layers that write their trained weights in the forward pass, as SpectralNormalization does, equal one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.strategy import PS
from tests.support.models import Data, dense_data, ready, stacked
from tests.support.steps import Adversarial, OwnStep
from tests.support.strategies import BUILDERS
from tests.support.training import QUIET, assert_equal_training, compiled, distributed, everything

layers = keras.layers


class Decaying(layers.Dense):
    """Decays its own weights in each call, in evaluation only if it is told so."""

    always = False

    def call(self, x, training=False):
        if training or self.always:
            self.kernel.assign(0.99 * self.kernel)
        return super().call(x)


class AlwaysDecaying(Decaying):
    always = True


def _spectral() -> keras.Model:
    """Two such layers, the second of which is called twice in a step, and a layer that decays its own weights."""

    x = keras.Input((5,))
    hidden = layers.SpectralNormalization(layers.Dense(4, activation="tanh", name="one"), power_iterations=2)(x)
    shared = layers.SpectralNormalization(layers.Dense(4, name="two"), name="shared")
    return ready(keras.Model(x, Decaying(1, name="out")(shared(shared(hidden)))), "adam", "mse", metrics=["mae"])


@pytest.mark.parametrize("builder", BUILDERS)
def test_every_builder(builder: str):
    """The last batch of an epoch leaves replicas without examples, whose weights change likewise."""
    assert_equal_training(_spectral, everything, strategy=builder, replicas=3)


@pytest.mark.parametrize("strategy", [None, PS(staleness=2)], ids=["shared", "staleness"])
def test_shared_memory_and_replicas_that_may_run_ahead(strategy):
    """One memory is written once; replicas stay in step where the forward pass writes weights."""
    assert_equal_training(_spectral, everything, strategy=strategy, share_memory=None)


class SpectralCritic(Adversarial):
    """The generator's step runs the critic once more, after the critic's own update."""

    def __init__(self):
        super().__init__()
        hidden = layers.SpectralNormalization(layers.Dense(5, activation="tanh", name="c1"), name="s1")
        self.critic = keras.Sequential([keras.Input((4,)), hidden, layers.Dense(1, name="c2")], name="critic")


class Clipped(OwnStep):
    """Clips its weights after the update, and looks at what it then computes, as a WGAN does."""

    def train_step(self, data):
        logs = super().train_step(data)
        for variable in self.trainable_variables:
            variable.assign(tf.clip_by_value(variable, -0.3, 0.3))
        return logs | {"clipped": tf.reduce_mean(self(data[0], training=True))}


@pytest.mark.quick("PS")
@pytest.mark.parametrize("builder", ["AllReduce", "PS", "UnevenPartitionedPS", "Mixed"])
def test_weights_that_are_clipped_after_the_update(builder: str):
    def build():
        return ready(Clipped(), keras.optimizers.Adam(0.1))

    assert_equal_training(build, data=dense_data(), strategy=builder, replicas=3)


@pytest.mark.parametrize("builder", ["AllReduce", "PS", "PartitionedPS"])
def test_an_adversary_with_such_a_critic(builder: str):
    def build():
        return ready(SpectralCritic(), "adam", keras.optimizers.SGD(0.1, momentum=0.5, name="critic_sgd"))

    random = np.random.default_rng(1)
    data = Data(random.normal(size=(22, 3)), random.normal(size=(22, 4)))
    assert_equal_training(build, data=data, strategy=builder, replicas=3)


class Moving(layers.Dense):
    """Moves its weights by what is in the batch."""

    def call(self, x):
        self.kernel.assign(self.kernel + 0.01 * tf.reduce_mean(x))
        return super().call(x)


class Counting(layers.Dense):
    """Divides its weights by a number that is added up over the replicas."""

    def build(self, shape):
        super().build(shape)
        self.count = self.add_weight(shape=(), initializer="ones", trainable=False, aggregation="sum")

    def call(self, x):
        self.kernel.assign(self.kernel / self.count)
        return super().call(x)


class Noisy(layers.Dense):
    """Adds noise to its weights."""

    def call(self, x):
        self.kernel.assign(self.kernel + 0.01 * tf.random.normal(self.kernel.shape, dtype=self.kernel.dtype))
        return super().call(x)


@pytest.mark.parametrize("kind", [Moving, Counting, Noisy])
def test_weights_that_are_not_the_same_on_all_replicas_are_refused(kind: type):
    def build():
        return stacked(keras.Input((5,)), kind(1, name="out"))

    data = dense_data()
    words = "'out/kernel' is written outside an optimizer"
    with distributed(compiled(build)) as front, pytest.raises(ValueError, match=words):
        front.fit(data.x, data.y, **QUIET)


@pytest.mark.parametrize("strategy", ["PS", "PartitionedPS", "AllReduce"])
def test_weights_that_an_evaluation_writes(strategy: str):
    """A server would not get what the replicas write there. With all-reduce each replica writes its own, alike."""
    def build():
        return stacked(keras.Input((5,)), AlwaysDecaying(1, name="out"))

    def program(front, model):
        data = dense_data()
        return [front.fit(data.x, data.y, **QUIET).history, front.evaluate(data.x, data.y, verbose=0)]

    if strategy == "AllReduce":
        assert_equal_training(build, program, strategy=strategy)
        return
    model = compiled(build)
    words = "'out/kernel' is written by a step without an optimizer, as evaluate"
    with distributed(model, strategy) as front, pytest.raises(ValueError, match=words):
        program(front, model)
