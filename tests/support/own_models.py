"""Small models with steps, losses and metrics of their own, as Keras's guides write them."""

import keras
import tensorflow as tf

layers = keras.layers


class OneLayer(keras.Model):
    """A subclassed model, for methods of its own."""

    def __init__(self):
        super().__init__(name="own")
        self.dense = layers.Dense(1, name="dense")

    def call(self, x):
        return self.dense(x)


class Measured(OneLayer):
    """Updates metrics in `call`, `compute_loss` and `compute_metrics`, and adds results to all of them."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1, activity_regularizer="l2", kernel_regularizer="l2", name="dense")
        self.called, self.losses_seen = keras.metrics.Mean(name="called"), keras.metrics.Mean(name="losses_seen")
        self.fourfold = keras.metrics.Mean(name="fourfold")
        self.squared = keras.metrics.MeanSquaredError(name="squared")
        self.resets = 0

    def call(self, x, training=None):
        predicted = self.dense(x)
        self.called.update_state(predicted)
        return predicted

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        self.losses_seen.update_state(sum(self.losses))
        self.fourfold.update_state(4 * loss)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.squared.update_state(y, y_pred)
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "twice": 2 * self.squared.result()}

    def get_metrics_result(self):
        return {**super().get_metrics_result(), "loss and a half": 1.5 * self._loss_tracker.result()}

    def reset_metrics(self):
        self.resets += 1
        super().reset_metrics()


class OwnSteps(OneLayer):
    """Adds to what Keras's steps return. Its `call` has more arguments than Keras knows."""

    def call(self, x, training=False, mask=None, factor=2.0, **others):
        assert not others
        return self.dense(x) * (factor if training else 1.0)

    def train_step(self, data):
        return {**super().train_step(data), "added": 10.0, "integer": tf.constant(3)}

    def test_step(self, data):
        return {**super().test_step(data), "added": 5.0}

    def predict_step(self, data):
        return {"predicted": super().predict_step(data), "inputs": data}


class ByHand(OneLayer):
    """Keeps its metrics by itself, as in Keras's guide."""

    def __init__(self):
        super().__init__()
        self.kept = [keras.metrics.Mean(name="loss"), keras.metrics.MeanAbsoluteError(name="mae")]

    @property
    def metrics(self):
        return self.kept

    def train_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        return self._measured(loss, y, predicted, weight)

    def test_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        predicted = self(x, training=False)
        return self._measured(self.compute_loss(x, y, predicted, weight, training=False), y, predicted, weight)

    def _measured(self, loss, y, predicted, weight):
        self.kept[0].update_state(loss)
        self.kept[1].update_state(y, predicted, sample_weight=weight)
        return {metric.name: metric.result() for metric in self.metrics}
