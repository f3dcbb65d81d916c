"""Models with training steps of their own, written the way Keras's guides show."""

import keras
import numpy as np
import tensorflow as tf


class OwnLoss:
    """Mixed into a model: a training step by the gradient of a loss of its own, of which a test changes a part."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.own_loss(x, y)
        self.descend(tape.gradient(loss, self.trainable_variables))
        return self.returned(x, loss)

    def own_loss(self, x, y):
        return tf.reduce_mean(tf.square(self(x, training=True) - y))

    def descend(self, gradients):
        self.optimizer.apply(gradients, self.trainable_variables)

    def returned(self, x, loss):
        return {"loss": loss}


class OwnStep(keras.Model):
    """A subclassed model with its own layers, its own loss tracker and its own `train_step`."""

    def __init__(self, name: str = "own_step"):
        super().__init__(name=name)
        self.first = keras.layers.Dense(6, activation="tanh", name="first")
        self.second = keras.layers.Dense(1, name="second")
        self.tracker = keras.metrics.Mean(name="squares")

    def call(self, x):
        return self.second(self.first(x))

    def loss_and_gradients(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            squares = tf.reduce_mean(tf.square(self(x, training=True) - y), axis=-1)
            loss = tf.reduce_mean(squares)
        self.tracker.update_state(squares)
        return loss, tape.gradient(loss, self.trainable_variables)

    def train_step(self, data):
        self.optimizer.apply(self.loss_and_gradients(data)[1], self.trainable_variables)
        return {"squares": self.tracker.result()}

    @property
    def metrics(self):
        return [self.tracker]


class AppliesTwice(OwnStep):
    """One optimizer that applies twice in a step; the second pass reads the weights that the first one wrote."""

    def train_step(self, data):
        x, y = data
        for power in (2.0, 1.5):
            with tf.GradientTape() as tape:
                errors = tf.reduce_mean(tf.abs(self(x, training=True) - y) ** power, axis=-1)
                loss = tf.reduce_mean(errors)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            self.tracker.update_state(errors)
        return {"squares": self.tracker.result()}


class Adversarial(keras.Model):
    """A generator and a critic with an optimizer each; the generator learns from the critic as just updated."""

    def __init__(self, name: str = "adversarial"):
        super().__init__(name=name)
        dense = keras.layers.Dense
        self.generator = keras.Sequential(
            [keras.Input((3,)), dense(5, activation="tanh", name="g1"), dense(4, name="g2")], name="generator"
        )
        self.critic = keras.Sequential(
            [keras.Input((4,)), dense(5, activation="tanh", name="c1"), dense(1, name="c2")], name="critic"
        )
        self.critic_loss = keras.metrics.Mean(name="critic_loss")
        self.generator_loss = keras.metrics.Mean(name="generator_loss")
        self.built = True

    def compile(self, optimizer, critic_optimizer, **kwargs):
        super().compile(optimizer=optimizer, **kwargs)
        self.critic_optimizer = critic_optimizer

    def call(self, noise):
        return self.generator(noise)

    def train_step(self, data):
        noise, real = data
        with tf.GradientTape() as tape:
            fake = self.generator(noise, training=True)
            terms = tf.nn.softplus(-self.critic(real, training=True)) + tf.nn.softplus(self.critic(fake, training=True))
            loss = tf.reduce_mean(terms)
        weights = self.critic.trainable_variables
        self.critic_optimizer.apply(tape.gradient(loss, weights), weights)
        self.critic_loss.update_state(terms)
        with tf.GradientTape() as tape:
            terms = tf.nn.softplus(-self.critic(self.generator(noise, training=True), training=True))
            loss = tf.reduce_mean(terms)
        weights = self.generator.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.generator_loss.update_state(terms)
        return {metric.name: metric.result() for metric in self.metrics}

    @property
    def metrics(self):
        return [self.critic_loss, self.generator_loss]


class LooksUp(keras.Model):
    """A table, whose gradient is rows, and a dense layer."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__(name="looks")
        self.table = keras.layers.Embedding(rows, columns, name="table")
        self.out = keras.layers.Dense(1, name="out")

    def call(self, ids):
        return self.out(tf.reduce_mean(self.table(ids), axis=1))


class SlicedStep(keras.Model):
    """The one-device reference of a model with batch statistics: each replica's slice sees its own statistics.

    Slices are contiguous, as `numpy.array_split` cuts them. Gradients, losses and moving averages are combined with
    the share of the batch's examples that each slice has; slices without examples do not count.
    Runs eagerly: compile it with `run_eagerly=True`.
    """

    replicas = 1

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        total = int(x.shape[0])
        before = [variable.numpy() for variable in self.non_trainable_variables]
        after = [np.zeros_like(value) for value in before]
        gradients = [np.zeros(variable.shape) for variable in self.trainable_variables]
        outputs, losses = [], []
        for rows in np.array_split(np.arange(total), self.replicas):
            if not len(rows):
                continue
            share = len(rows) / total
            x_part, y_part = (tf.gather(tensor, rows) for tensor in (x, y))
            weight_part = None if sample_weight is None else tf.gather(sample_weight, rows)
            for variable, value in zip(self.non_trainable_variables, before, strict=True):
                variable.assign(value)
            with tf.GradientTape() as tape:
                outputs.append(self(x_part, training=True))
                part = self.compute_loss(x_part, y_part, outputs[-1], weight_part)
            for total_gradient, gradient in zip(gradients, tape.gradient(part, self.trainable_variables), strict=True):
                total_gradient += share * gradient.numpy()
            for value, variable in zip(after, self.non_trainable_variables, strict=True):
                value += share * variable.numpy()
            losses.append(share * part)
        for variable, value in zip(self.non_trainable_variables, after, strict=True):
            variable.assign(value)
        self.optimizer.apply([tf.constant(gradient) for gradient in gradients], self.trainable_variables)
        self._loss_tracker.update_state(tf.add_n(losses), sample_weight=total)
        return self.compute_metrics(x, y, tf.concat(outputs, axis=0), sample_weight)


class ReadsAMetric(keras.Model):
    """Its evaluation weighs the predictions by a metric that only training writes."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.seen = keras.layers.Dense(1), keras.metrics.Sum(name="seen")

    def call(self, x):
        return self.dense(x)

    def test_step(self, data):
        predicted = self(data[0], training=False)
        return {"scaled": tf.reduce_mean(predicted * self.seen.total)}


class ComparesInInference(keras.Sequential):
    """Compares examples where it evaluates and predicts."""

    def test_step(self, data):
        predicted = self(data[0])
        return {"loss": self.compute_loss(data[0], data[1], predicted), "spread": keras.ops.max(predicted) ** 2}

    def predict_step(self, data):
        return keras.ops.argsort(self(keras.utils.unpack_x_y_sample_weight(data)[0]), axis=0)


class Averages(keras.metrics.Mean):
    """Updates itself with one number of the batch."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(keras.ops.mean(y_pred), sample_weight=self.weigh(y_pred))

    def weigh(self, y_pred):
        return None


class HidesItsMetrics(keras.Sequential):
    """Updates metrics that `metrics` does not list."""

    def __init__(self):
        super().__init__([keras.Input((5,)), keras.layers.Dense(1, name="out")])
        self.hidden, self.more = keras.metrics.Mean(name="hidden"), {"own": Averages("own")}

    @property
    def metrics(self):
        return []

    def test_step(self, data):
        loss = keras.ops.mean(keras.ops.square(self(data[0]) - data[1]))
        self.hidden.update_state(loss)
        self.more["own"].update_state(None, loss)
        return {"hidden": self.hidden.result()}
