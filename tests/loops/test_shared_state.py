"""Several functions share one state: training, evaluation, two networks, metrics, and what others see."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core import ResourceSpec
from autodist_keras import DistributedModel
from tests.support.compare import assert_same, flat
from tests.support.loop_optimizers import WAYS
from tests.support.loops import BATCHES, EVEN, Net, assert_equal_loops, autodist, batches, examples, run_plain, values


def classifier() -> keras.Model:
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(7, activation="tanh"), keras.layers.Dense(3)])


def three_functions(front: Any) -> Any:
    model, update = classifier(), WAYS["adam"]()
    of_batch = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = [
        keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy(), keras.metrics.Sum(),
        keras.metrics.SparseCategoricalCrossentropy(from_logits=True),
    ]  # fmt: skip

    @front.function
    def train(x, y):
        predicted = model(x, training=True)
        loss = update(lambda: of_batch(y, model(x, training=True)), model.trainable_variables)
        for metric, given in zip(metrics, [(loss,), (y, predicted), (tf.reduce_sum(x),), (y, predicted)], strict=True):
            metric.update_state(*given)
        return loss

    @front.function
    def evaluate(x, y):
        metrics[1].update_state(y, model(x))
        return of_batch(y, model(x))

    predict = front.function(lambda x: tf.nn.softmax(model(x)))
    x, y = examples()
    seen = [predict(x[:5])]
    for _ in range(2):
        for metric in metrics:
            metric.reset_state()
        seen += [train(*batch) for batch in batches(x, y)]
        seen += [metric.result() for metric in metrics]
        metrics[1].reset_state()
        seen += [evaluate(*batch) for batch in batches(x, y, sizes=(9, 2))]
        seen += [metrics[1].result(), predict(x[:4])]
    return {"seen": seen, "weights": values(model.weights), "optimizer": values(update.variables)}


class Adversaries:
    """A generator and a critic."""

    def __init__(self) -> None:
        layers = keras.layers
        self.generator = keras.Sequential([keras.Input((4,)), layers.Dense(8, activation="relu"), layers.Dense(5)])
        self.critic = keras.Sequential([keras.Input((5,)), layers.Dense(8, activation="tanh"), layers.Dense(1)])
        self.optimizers = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02)
        self.loss = keras.losses.BinaryCrossentropy(from_logits=True)
        self.noise = np.random.default_rng(5).normal(size=(sum(BATCHES), 4))

    def of_generator(self, noise):
        judged = self.critic(self.generator(noise, training=True), training=True)
        return self.loss(tf.ones_like(judged), judged)

    def of_critic(self, x, noise):
        real, fake = self.critic(x), self.critic(self.generator(noise, training=True))
        return self.loss(tf.ones_like(real), real) + self.loss(tf.zeros_like(fake), fake)

    def apply(self, index, gradients):
        variables = (self.generator, self.critic)[index].trainable_variables
        self.optimizers[index].apply_gradients(zip(gradients, variables, strict=True))

    def train_generator(self, noise):
        with tf.GradientTape() as tape:
            loss = self.of_generator(noise)
        self.apply(0, tape.gradient(loss, self.generator.trainable_variables))
        return loss

    def train_critic(self, x, noise):
        with tf.GradientTape() as tape:
            loss = self.of_critic(x, noise)
        self.apply(1, tape.gradient(loss, self.critic.trainable_variables))
        return loss

    def left(self, seen):
        owners = [self.generator.weights, self.critic.weights, *(each.variables for each in self.optimizers)]
        return {"seen": seen, "state": values(*owners)}


def gan_at_once(front: Any) -> Any:
    both = Adversaries()

    @front.function
    def step(x, noise):
        with tf.GradientTape() as of_generator, tf.GradientTape() as of_critic:
            one, other = both.of_generator(noise), both.of_critic(x, noise)
        found = of_generator.gradient(one, both.generator.trainable_variables)
        both.apply(1, of_critic.gradient(other, both.critic.trainable_variables))
        both.apply(0, found)
        return one, other

    return both.left([step(*batch) for batch in batches(examples()[0], both.noise, sizes=EVEN)])


def gan_in_turns(front: Any) -> Any:
    both = Adversaries()

    @front.function
    def step(x, noise):
        return both.train_critic(x, noise), both.train_generator(noise)

    return both.left([step(*batch) for batch in batches(examples()[0], both.noise, sizes=EVEN)])


def gan_of_two_functions(front: Any) -> Any:
    both = Adversaries()
    train_critic, train_generator = front.function(both.train_critic), front.function(both.train_generator)
    given = batches(examples()[0], both.noise, sizes=EVEN)
    seen = [(train_critic(x, noise), train_generator(noise)) for x, noise in given]
    return both.left(seen)


def wasserstein_with_penalty(front: Any) -> Any:
    both = Adversaries()

    @front.function
    def train_critic(x, noise, mix):
        with tf.GradientTape() as tape:
            fake = both.generator(noise)
            between = x * mix + fake * (1.0 - mix)
            with tf.GradientTape() as inner:
                inner.watch(between)
                judged = both.critic(between)
            norms = tf.sqrt(tf.reduce_sum(inner.gradient(judged, between) ** 2, 1) + 1e-9)
            penalty = tf.reduce_mean((norms - 1.0) ** 2)
            loss = tf.reduce_mean(both.critic(fake)) - tf.reduce_mean(both.critic(x)) + 10.0 * penalty
        both.apply(1, tape.gradient(loss, both.critic.trainable_variables))
        return loss, penalty

    @front.function
    def train_generator(noise):
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(both.critic(both.generator(noise, training=True)))
        both.apply(0, tape.gradient(loss, both.generator.trainable_variables))
        return loss

    mixes = np.random.default_rng(9).random((sum(BATCHES), 1))
    seen = []
    for x, noise, mix in batches(examples()[0], both.noise, mixes, sizes=EVEN):
        seen += [train_critic(x, noise, mix) for _ in range(2)] + [train_generator(noise)]
    return both.left(seen)


def descending(front: Any, net: Net) -> Any:
    @front.function
    def step(x, y):
        return net.train(lambda: net.loss(x, y))

    return step


def seen_and_assigned(front: Any) -> Any:
    net = Net()
    step = descending(front, net)
    total = tf.function(lambda: tf.reduce_sum(net.kernel) + tf.reduce_sum(net.bias))
    seen = [total()]
    for turn, (x, y) in enumerate(batches(*examples(), sizes=EVEN)):
        seen += [step(x, y), net.kernel.numpy(), total(), net.bias + 1.0, net.out.read_value()]
        if turn == 1:
            net.bias.assign_add(tf.ones(7, tf.float64))
            net.kernel[0, :2].assign([5.0, 6.0])
        if turn == 2:
            net.out.assign(0.5 * net.out)
    return {"seen": seen, "weights": values(net.variables)}


def learning_rate(front: Any) -> Any:
    model, update = classifier(), WAYS["momentum"]()
    of_batch = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = front.function(lambda x, y: update(lambda: of_batch(y, model(x)), model.trainable_variables))
    seen = []
    for batch in batches(*examples(), sizes=EVEN):
        seen += [step(*batch), int(update.optimizer.iterations)]
        update.optimizer.learning_rate = 0.5 * float(update.optimizer.learning_rate)
        model.layers[0].set_weights([0.9 * each for each in model.layers[0].get_weights()])
    return {"seen": seen, "weights": values(model.weights), "optimizer": values(update.variables)}


class Trained:
    """A network with an optimizer that has slots, and a checkpoint of both."""

    def __init__(self, front: Any) -> None:
        self.net, self.steps = Net(), tf.Variable(0, dtype=tf.int64)
        optimizer = keras.optimizers.Adam(0.02)
        self.model = classifier()
        self.checkpoint = tf.train.Checkpoint(net=tf.Module(), model=self.model, optimizer=optimizer, steps=self.steps)
        for variable in self.net.variables:
            setattr(self.checkpoint.net, variable.name.partition(":")[0], variable)
        of_batch = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @front.function
        def step(x, y):
            with tf.GradientTape(persistent=True) as tape:
                one, other = self.net.loss(x, y), of_batch(y, self.model(x))
            self.net.descend(tape.gradient(one, self.net.variables))
            variables = self.model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(other, variables), variables, strict=True))
            self.steps.assign_add(1)
            return one, other

        self.step, self.optimizer = step, optimizer

    def train(self) -> list:
        return [self.step(*batch) for batch in batches(*examples(), sizes=EVEN)]

    def state(self) -> dict:
        return flat({
            "net": values(self.net.variables), "model": values(self.model.weights),
            "optimizer": values(self.optimizer.variables), "steps": self.steps.numpy(),
        })  # fmt: skip


def _trained_twice(front: Any) -> Any:
    trained = Trained(front)
    return {"seen": [trained.train(), trained.train()], "state": trained.state()}


@pytest.mark.quick("PartitionedPS-AllReduce")
@pytest.mark.parametrize("first, second", [("PartitionedPS", "AllReduce"), ("AllReduce", "UnevenPartitionedPS")])
def test_a_checkpoint_goes_from_one_strategy_to_another(tmp_path, first: str, second: str):
    """Whole shapes and own names: TensorFlow alone reads what a partitioned strategy has trained."""
    expected = run_plain(_trained_twice)
    keras.utils.set_random_seed(20)
    with autodist(first, replicas=3) as front:
        trained = Trained(front)
        seen = trained.train()
        path = trained.checkpoint.save(tmp_path / "model")
        kept = trained.state()
    stored = {name: tuple(shape) for name, shape in tf.train.list_variables(path)}
    assert stored["net/kernel/.ATTRIBUTES/VARIABLE_VALUE"] == (5, 7)
    reader = tf.train.load_checkpoint(path)
    np.testing.assert_array_equal(reader.get_tensor("net/out/.ATTRIBUTES/VARIABLE_VALUE"), kept["net/2"])
    with autodist(second, replicas=2) as front:
        again = Trained(front)
        again.train()  # other weights, and an optimizer that is built
        again.checkpoint.restore(path).assert_consumed()
        assert_same(kept, again.state(), 0.0)
        actual = flat({"seen": [seen, again.train()], "state": again.state()})
    assert_same(expected, actual)


def test_a_model_is_saved_in_the_middle_of_a_loop(tmp_path):
    keras.utils.set_random_seed(20)
    with autodist("PartitionedPS", replicas=3) as front:
        trained = Trained(front)
        trained.train()
        trained.model.save(tmp_path / "model.keras")
        trained.model.save_weights(tmp_path / "model.weights.h5")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        kept = trained.model.get_weights()
        trained.train()
        assert not np.array_equal(kept[0], trained.model.get_weights()[0])
        trained.model.load_weights(tmp_path / "model.weights.h5")
        predict = front.function(trained.model)
        x, _ = examples()
        assert_same(flat(list(loaded.get_weights())), flat(kept), 0.0)
        assert_same(flat(np.asarray(loaded(x))), flat(predict(x).numpy()))


def test_variables_stay_after_a_close_and_a_later_call_goes_on():
    front, net = autodist("PartitionedPS", replicas=3), Net()
    step, (first, second) = descending(front, net), batches(*examples(), sizes=(13, 13))
    expected = Net()
    plain = descending(type("Plain", (), {"function": staticmethod(tf.function)}), expected)
    for batch in (first, second):
        step(*batch)
        plain(*batch)
        front.close()
        assert_same(flat(values(expected.variables)), flat(values(net.variables)))
    assert all(type(each) is type(expected.bias) for each in net.variables)



def _counting(front: Any, weight: Any) -> Any:
    @front.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * tf.reduce_mean(x, 0))
        weight.assign_sub(0 * tape.gradient(loss, weight) + 1)
        return loss

    return step


@pytest.mark.parametrize("looks", [False, True])
def test_two_fronts_train_the_same_variables_in_turn(looks: bool):
    x = examples(12)[0]
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1, use_bias=False, dtype="float64")])
    weight = model.weights[0]
    weight.assign(np.zeros((5, 1)))
    seen = []
    with autodist("PS", replicas=2) as first, autodist("AllReduce", replicas=3) as second:
        steps = [_counting(front, weight) for front in (first, second)]
        losses = [front.function(lambda x: tf.reduce_sum(x @ weight)) for front in (first, second)]
        for _ in range(3):
            for step, other in zip(steps, reversed(losses), strict=True):
                step(x)
                if looks:
                    seen.append(float(other(np.eye(5))) / 5)
        steps[1](x)
        weight.assign(np.full((5, 1), 5.0))
        steps[0](x)
        steps[1](x)
        with DistributedModel(model, ResourceSpec.local(cpus=2), "PS") as wrapped:
            wrapped.compile(keras.optimizers.SGD(0.0), "mse")
            calls = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: steps[0](x))
            wrapped.fit(x, np.zeros((12, 1)), batch_size=4, verbose=0, callbacks=[calls])
            steps[1](x)
        steps[1](x)
    assert weight.numpy().tolist() == [[-2.0]] * 5
    assert not looks or seen == [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]


def gradients_in_one_function_and_apply_in_another(front: Any) -> Any:
    net, optimizer = Net(), keras.optimizers.Adam(0.05)

    @front.function
    def differentiate(x, y):
        with tf.GradientTape() as tape:
            loss = net.loss(x, y)
        return loss, tape.gradient(loss, net.variables)

    @front.function(whole=["found"])
    def apply(found):
        optimizer.apply(found, net.variables)

    losses = []
    for x, y in batches(*examples()):
        loss, found = differentiate(x, y)
        apply(found)
        losses.append(loss)
    return losses, values(net.variables)


@pytest.mark.quick(
    "gan_at_once-PartitionedPS", "three_functions-AllReduce", "seen_and_assigned-PartitionedPS", "learning_rate-PS",
    "gradients_in_one_function_and_apply_in_another-PartitionedPS",
)  # fmt: skip
@pytest.mark.parametrize(("loop", "strategy"), [
    (gan_at_once, "PartitionedPS"), (gan_in_turns, "PS"), (gan_of_two_functions, "AllReduce"),
    (wasserstein_with_penalty, "PS"), (wasserstein_with_penalty, "AllReduce"),
    (three_functions, "AllReduce"), (seen_and_assigned, "PartitionedPS"), (learning_rate, "PS"),
    (gradients_in_one_function_and_apply_in_another, "PartitionedPS"),
], ids=lambda value: getattr(value, "__name__", value))  # fmt: skip
def test_functions_that_share_a_state_equal_one_device(loop: Any, strategy: str):
    assert_equal_loops(loop, strategy)
