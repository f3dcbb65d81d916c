"""What a training step of the user's own may differentiate: values of each example, sums, means, and several terms."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from autodist_core import whole_batch
from tests.support.models import Data, ReferenceModel, dense_data, ready
from tests.support.plans import notes_of
from tests.support.steps import Adversarial, OwnLoss, OwnStep
from tests.support.training import assert_equal_training, distributed, seeded


class Differentiates(keras.Sequential):
    """Trains by the gradient of what a function makes of the batch."""

    def __init__(self, function):
        layers = keras.layers
        super().__init__([
            keras.Input((5,)), layers.Dense(4, activation="tanh", name="first"),
            layers.BatchNormalization(synchronized=True, name="norm"), layers.Dense(1, name="last"),
        ])  # fmt: skip
        self.function = function

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            target = self.function(self, x, y, predicted)
        gradients = tape.gradient(target, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        far = tf.abs(predicted - y)
        return {"distance": tf.reduce_mean(far), "sum": tf.reduce_sum(far), "masked": _of_mask(far, y)}


def _errors(y, predicted):
    return keras.losses.mean_squared_error(y, predicted)


def _of_mask(values, y):
    mask = tf.cast(y > 0, values.dtype)
    return tf.reduce_sum(values * mask) / tf.maximum(tf.reduce_sum(tf.reduce_sum(mask, 0)), 1.0)


def _penalty(model):
    return 0.01 * tf.nn.l2_loss(model.layers[0].kernel.value)


def _sloped(model, x, y, predicted):
    """A penalty of the slopes at the examples, as for a critic."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        predicted = model(x, training=False)
    slopes = tape.gradient(predicted, x)
    return tf.reduce_sum(_errors(y, predicted)) + tf.reduce_mean(tf.square(tf.norm(slopes, axis=1) - 1.0))


EXACT = {
    "vector": lambda model, x, y, p: _errors(y, p),
    "column": lambda model, x, y, p: tf.square(y - p),
    "vector_and_penalty": lambda model, x, y, p: _errors(y, p) + _penalty(model),
    "sum": lambda model, x, y, p: tf.reduce_sum(_errors(y, p)),
    "masked": lambda model, x, y, p: _of_mask(tf.square(y - p), y) + _penalty(model),
    "mean": lambda model, x, y, p: tf.reduce_mean(_errors(y, p)) + _penalty(model),
    "sum_and_penalty": lambda model, x, y, p: (
        tf.reduce_sum(_errors(y, p)) + tf.reduce_mean(tf.abs(p)) - _penalty(model)),
    "list": lambda model, x, y, p: [tf.reduce_mean(tf.abs(p)), _errors(y, p)],
    "chosen": lambda model, x, y, p: tf.boolean_mask(_errors(y, p), y[:, 0] > 0),
    "slopes": _sloped,
}  # fmt: skip


def _case(name: str) -> ReferenceModel:
    return ReferenceModel(
        name, lambda: Differentiates(EXACT[name]), dense_data,
        lambda: {"optimizer": keras.optimizers.SGD(0.01, momentum=0.9, name="sgd")},
    )


@pytest.mark.quick("sum_and_penalty", "list")
@pytest.mark.parametrize("name", EXACT)
def test_what_a_step_differentiates_counts_as_on_one_device(name: str):
    assert_equal_training(_case(name), replicas=3)


class Siamese(keras.Model):
    """Learns of triplets: its loss has one value for each of them, and goes to the tape as it is."""

    def __init__(self):
        super().__init__(name="siamese")
        self.net = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="tanh", name="net")])
        self.tracker = keras.metrics.Mean(name="loss")
        self.built = True

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        return self.net(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            anchor, near, far = (self.net(part) for part in data[0])
            distances = (ops.sum(tf.square(anchor - other), -1) for other in (near, far))
            loss = ops.maximum(next(distances) - next(distances) + 0.5, 0.0)
        gradients = tape.gradient(loss, self.net.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.net.trainable_weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def _triplets() -> Data:
    x = dense_data().x
    return Data((x, x[::-1].copy(), np.roll(x, 3, 0)), None)


def test_triplets():
    case = ReferenceModel("siamese", Siamese, _triplets, dict)
    assert_equal_training(case, optimizer="sgd", replicas=3)
    model = ready(seeded(Siamese), "sgd", jit_compile=False)
    with distributed(model, replicas=3) as front:
        assert "is the model's own" not in front.plan(_triplets().x)


@pytest.mark.quick("sum_and_penalty", "slopes")
@pytest.mark.parametrize("name", EXACT)
def test_what_is_exact_has_no_note(name: str):
    data = dense_data(16)
    model = ready(seeded(_case(name).build), "sgd", jit_compile=False)
    with distributed(model) as front:
        plan = front.plan(data.x, data.y)
    assert "not exact" not in plan and "is the model's own" not in plan and "whether" not in plan, plan


def test_two_optimizers_have_no_note():
    model, random = seeded(Adversarial), np.random.default_rng(2)
    model.compile("sgd", keras.optimizers.SGD(0.1), jit_compile=False)
    with distributed(model) as front:
        assert "is the model's own" not in front.plan(random.normal(size=(16, 3)), random.normal(size=(16, 4)))


def assert_equal_on_three(of, how):
    assert_equal_training(lambda: ready(of(), "sgd", jit_compile=False), data=dense_data(), strategy=how, replicas=3)


class SelfDistilled(OwnLoss, keras.Model):
    """After its update, a teacher follows the weights, and the mean of what that says then is written, too."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.student, self.teacher = (
            keras.Sequential([keras.Input((5,)), keras.layers.Dense(5, name=name)]) for name in ("student", "teacher"))
        self.teacher.trainable = False
        self.centre = self.add_weight(shape=(), initializer="ones", trainable=False, name="centre")

    def call(self, x, training=False):
        return self.student(x) - self.teacher(x) + self.centre

    def returned(self, x, loss):
        (student, _), (teacher, _) = self.student.weights, self.teacher.weights
        if self.how == "read":
            teacher.assign(0.9 * teacher + 0.1 * student)
            x = self.teacher(x)
        else:
            teacher.assign(tf.while_loop(lambda value: True, lambda value: (0.5 * value + self.centre * student,),
                                         [tf.identity(teacher)], maximum_iterations=2)[0])
        self.centre.assign_add(0.1 * ops.mean(x))
        return {"loss": loss}


@pytest.mark.parametrize("how", ["read", "overwritten"])
@pytest.mark.parametrize("strategy", ["AllReduce", "PartitionedPS"])
def test_writes_after_what_followed_the_update(how: str, strategy: str):
    """The last write needs a variable that was written after the update, or changes one that a loop has read then."""
    assert_equal_on_three(lambda: SelfDistilled(how), strategy)


class Centring(OwnLoss, keras.Sequential):
    """Writes the mean of what it says, and takes it off; what the step returns is made of rows and of that mean."""

    def __init__(self):
        super().__init__([keras.Input((5,)), keras.layers.Dense(2, name="out")])
        self.centre = self.add_weight(shape=(2,), initializer="zeros", trainable=False, name="centre")

    def call(self, x, training=False):
        said = super().call(x)
        if training:
            self.centre.assign(0.5 * self.centre + 0.5 * ops.mean(whole_batch(said), axis=0))
        return said - self.centre

    def returned(self, x, loss):
        said = self(x)
        return {"loss": loss, "above": ops.sum(ops.cast(said > self.centre, "int32")), "root": ops.sqrt(loss),
                "distance": ops.mean(ops.abs(said + self.centre))}  # fmt: skip


def test_results_of_rows_and_of_state_that_the_step_wrote():
    """The batches leave some replicas fewer examples than others."""
    assert_equal_on_three(Centring, "AllReduce")


class OfAList(OwnLoss, OwnStep):
    """Its optimizer is deep in a container."""

    def descend(self, gradients):
        self.chosen["deep"][0].apply(gradients, self.trainable_variables)

    def returned(self, x, loss):
        return {"loss": loss, "rows": tf.shape(x)[0]}


def test_an_optimizer_deep_in_a_container_is_found():
    def build() -> keras.Model:
        model = OfAList()
        model.chosen = {"deep": [keras.optimizers.Adam(0.01)]}
        model.compile(jit_compile=False)
        return model

    assert "rows" in assert_equal_training(build, data=dense_data()).result


def test_what_is_neither_a_sum_nor_a_mean_is_named(caplog):
    data = dense_data(16)

    def build():
        return Differentiates(lambda model, x, y, p: tf.sqrt(tf.reduce_mean(_errors(y, p)), name="root"))

    (note,) = notes_of(build, data.x, data.y)
    said = "not exact: the step's loss makes a value of the whole batch that is no mean over its examples, by Sqrt ("
    assert note.startswith(said) and f'(File "{__file__}", line ' in note
    model = ready(seeded(build), "sgd", jit_compile=False)
    with distributed(model) as front:
        front.fit(data.x, data.y, batch_size=8, verbose=0)
    assert any(said in message for message in caplog.messages)


def test_a_loss_that_is_not_known_has_the_note():
    def along_some_axis(model, x, y, predicted):
        return tf.cumsum(_errors(y, predicted), tf.cast(tf.argmax(tf.random.normal((2,))), "int32"))

    data, model = dense_data(16), ready(seeded(lambda: Differentiates(along_some_axis)), "sgd", jit_compile=False)
    with distributed(model) as front:
        assert "how train_step" in (plan := front.plan(data.x, data.y)) and "it counts as a mean" in plan
