"""Gradients that a custom step transforms between the tape and `apply`: the transformation acts on the whole batch's.

Each is one device's result to rounding, or refused with the name of what is in the way; never done by each replica.
"""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.capture.steps import DATA, QUIET, assert_refused, gradients_of, stepping
from tests.support.compare import Trained, assert_equally_trained, relative_error
from tests.support.steps import LooksUp
from tests.support.training import assert_equal_training, fit, plain, train_distributed

TRANSFORMED = {
    "by global norm": lambda model, g: tf.clip_by_global_norm(g, 0.3)[0],
    "by norm": lambda model, g: [tf.clip_by_norm(x, 0.1) for x in g],
    "by value": lambda model, g: [keras.ops.clip(x, -0.02, 0.02) for x in g],
    "in a function": lambda model, g: tf.function(lambda g: tf.clip_by_global_norm(g, 0.3)[0])(g),
    "in a switch": lambda model, g: tf.switch_case(
        tf.constant(1), [lambda: list(g), lambda: [tf.clip_by_norm(x, 0.1) for x in g], lambda: [-x for x in g]]
    ),
    "in a conditional": lambda model, g: [
        tf.cond(tf.reduce_max(tf.abs(x)) > 0.05, lambda x=x: 0.5 * x, lambda x=x: x) for x in g
    ],
    "halved": lambda model, g: [0.5 * x for x in g],
    "by another's size": lambda model, g: [g[0], *(x / tf.reduce_max(tf.abs(g[0])) for x in g[1:])],
    "centred": lambda model, g: [x - tf.reduce_mean(x, axis=0) for x in g[:-1]] + [g[-1]],
    "decayed": lambda model, g: [x + 0.1 * v for x, v in zip(g, model.trainable_variables, strict=True)],
    "shifted": lambda model, g: [x + 0.01 for x in g],
    "one is zero": lambda model, g: [g[0], tf.zeros_like(g[1]), *tf.clip_by_global_norm(g[2:], 0.1)[0]],
    "one is constant": lambda model, g: [g[0], tf.fill(g[1].shape, tf.constant(0.01, "float64")), *g[2:]],
}
UNCHANGED = {
    "not a number": lambda model, g: [tf.where(tf.math.is_nan(x), tf.zeros_like(x), x) for x in g],
    "cast and back": lambda model, g: [tf.cast(tf.cast(x, "complex128"), "float64") for x in g],
    "as they are": lambda model, g: g,
}
EVERYTHING = TRANSFORMED | UNCHANGED


def _build(name: str, scaled: bool) -> keras.Model:
    def step(model, data):
        model.optimizer.apply(EVERYTHING[name](model, gradients_of(model, data, scaled)), model.trainable_variables)

    return stepping(step)()


BUILDS = {(name, scaled): partial(_build, name, scaled) for name in EVERYTHING for scaled in (False, True)}


def _fit(front, model) -> dict:
    return fit(front, DATA, **QUIET)


def _expected(name: str) -> Trained:
    """What one device makes of it, where scaling the loss changes nothing."""
    return plain(BUILDS[name, False], _fit)


@pytest.mark.quick(
    "0-by global norm", "4-in a switch", "8-centred", "12-one is constant",
)  # fmt: skip
@pytest.mark.parametrize("index, name", list(enumerate(EVERYTHING)))
def test_the_whole_batchs_gradients_are_transformed(index: int, name: str):
    """Builders, ways of scaling and of keeping memory are spread over the transformations."""
    scaled, builder = index % 2 == 0, ("AllReduce", "PS", "PSLoadBalancing")[index % 3]
    found = train_distributed(BUILDS[name, scaled], _fit, strategy=builder, share_memory=index % 4 == 3)
    assert_equally_trained(_expected(name), found)
    untouched = _expected("as they are").weights
    changed = max(relative_error(untouched[path], value) for path, value in found.weights.items())
    assert (changed > 1e-3) == (name in TRANSFORMED), "else equality would say nothing"


@pytest.mark.quick("True-decayed")
@pytest.mark.parametrize("name", ["decayed", "one is constant"])
@pytest.mark.parametrize("scaled", [False, True])
def test_whether_the_loss_was_scaled_or_not(name: str, scaled: bool):
    """What is added to a gradient counts once, not once for every replica."""
    assert_equally_trained(_expected(name), train_distributed(BUILDS[name, scaled], _fit, replicas=3))


class Looks(LooksUp):
    """The table's rows are clipped."""

    def train_step(self, data):
        rows, *others = gradients_of(self, data)
        assert isinstance(rows, tf.IndexedSlices)
        self.optimizer.apply([tf.clip_by_norm(rows, 0.02), *others], self.trainable_variables)
        return {"rows": tf.reduce_sum(rows.values)}


@pytest.mark.quick("PS")
@pytest.mark.parametrize("builder", ["AllReduce", "PS"])
def test_rows_are_clipped_as_one_device_clips_them(builder: str):
    """By the norm of all rows of the whole batch."""
    random = np.random.default_rng(12)
    ids, y = random.integers(0, 5, (9, 3)).astype("int32"), random.normal(size=(9, 1))

    def build() -> keras.Model:
        model = Looks(5, 2)
        model.compile(keras.optimizers.SGD(0.5, name="sgd"), jit_compile=False)
        model(ids)
        return model

    def program(front, model):
        start = model.table.embeddings.numpy()
        front.fit(ids, y, batch_size=4, verbose=0, shuffle=False)
        return {"moved": np.abs(model.table.embeddings.numpy() - start).max()}

    assert 1e-3 < assert_equal_training(build, program, strategy=builder).result["moved"] < 0.03


def _loss_of(model: keras.Model, data: tuple) -> tf.Tensor:
    return tf.reduce_mean(tf.square(model(data[0], training=True) - data[1]))


def _in_function(model: keras.Model, data: tuple) -> list:
    return tf.function(lambda: gradients_of(model, data))()


def _summed_in_a_loop(model: keras.Model, data: tuple) -> list:
    """As who trains in parts that fit the memory does."""

    def body(index, *sums):
        gradients = gradients_of(model, (data[0] / tf.cast(1 + index, "float64"), data[1]))
        return index + 1, *(total + gradient for total, gradient in zip(sums, gradients, strict=True))

    zeros = [tf.zeros_like(variable) for variable in model.trainable_variables]
    return list(tf.while_loop(lambda index, *_: index < 2, body, [tf.constant(0), *zeros])[1:])


def _in_a_branch(model: keras.Model, data: tuple) -> list:
    def other():
        return [-g for g in gradients_of(model, data)]

    return tf.cond(tf.constant(True), lambda: gradients_of(model, data), other)


def _symbolic(model: keras.Model, data: tuple) -> list:
    return tf.gradients(_loss_of(model, data), [variable.value for variable in model.trainable_variables])


ELSEWHERE = {"in a function": _in_function, "in a loop": _summed_in_a_loop, "in a branch": _in_a_branch,
             "by tf.gradients": _symbolic}  # fmt: skip


@pytest.mark.quick("True-0-in a function", "True-3-by tf.gradients", "False-2-in a branch")
@pytest.mark.oldest  # it reads what TensorFlow remembers of operations and functions
@pytest.mark.parametrize("index, name", list(enumerate(ELSEWHERE)))
@pytest.mark.parametrize("clipped", [True, False])
def test_gradients_that_are_made_elsewhere(index: int, name: str, clipped: bool):
    """Wherever they were made, by hand they are clipped after the reduction."""

    def step(model, data):
        gradients = ELSEWHERE[name](model, data)
        if clipped:
            gradients = tf.clip_by_global_norm(gradients, 0.3)[0]
        model.optimizer.apply(gradients, model.trainable_variables)

    assert_equal_training(stepping(step), _fit, strategy=("AllReduce", "PS")[index % 2])


def _chosen_by_data(model: keras.Model, data: tuple) -> list:
    positive = tf.reduce_mean(data[0]) > 0.0
    return tf.cond(positive, lambda: gradients_of(model, data), lambda: [-g for g in gradients_of(model, data)])


CLIPPED_INSIDE = {
    "a function": lambda model, data: tf.function(lambda: tf.clip_by_global_norm(gradients_of(model, data), 0.3)[0])(),
    "fewer digits": lambda model, data: [
        tf.cast(tf.cast(64.0 * g, "int32"), g.dtype) / 64.0 for g in gradients_of(model, data)
    ],
    "by its data": _chosen_by_data,
    "a branch": lambda model, data: tf.cond(
        tf.constant(True),
        lambda: [tf.clip_by_norm(g, 0.1) for g in gradients_of(model, data)], lambda: gradients_of(model, data),
    ),
    "a loop": lambda model, data: tf.while_loop(
        lambda index, *_: index < 2,
        lambda index, *sums: (index + 1, *(tf.clip_by_norm(g, 0.1) for g in gradients_of(model, data))),
        [tf.constant(0), *(tf.zeros_like(variable) for variable in model.trainable_variables)],
    )[1:],
}


@pytest.mark.quick("a function", "by its data")
@pytest.mark.parametrize("name", CLIPPED_INSIDE)
def test_what_each_replica_would_do_by_itself_is_refused(name: str):
    """Nothing can be cut inside a graph that the step only runs, nor where a gradient is not a number any more."""

    def step(model, data):
        model.optimizer.apply(list(CLIPPED_INSIDE[name](model, data)), model.trainable_variables)

    assert_refused(stepping(step)(), r"is transformed by .* not clear where it com")


def _penalised(model: keras.Model, data: tuple) -> list:
    """The size of the gradient is part of the loss."""
    with tf.GradientTape() as tape:
        loss = _loss_of(model, data) + 0.1 * tf.add_n([tf.reduce_sum(g**2) for g in gradients_of(model, data)])
    return tape.gradient(loss, model.trainable_variables)


def _after_an_inner_step(model: keras.Model, data: tuple) -> list:
    """The loss is that of the weights after a step, as in learning to learn."""
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        moved = [v.value - 0.5 * g for v, g in zip(variables, gradients_of(model, data), strict=True)]
        predicted, _ = model.stateless_call(moved, [v.value for v in model.non_trainable_variables], data[0])
        loss = tf.reduce_mean(tf.square(predicted - data[1]))
    return tape.gradient(loss, variables)


def _clipped_behind_a_variable(model: keras.Model, data: tuple) -> list:
    for kept, gradient in zip(model.kept, gradients_of(model, data), strict=True):
        kept.assign(0.9 * kept + 0.1 * gradient)
    return tf.clip_by_global_norm([kept.value for kept in model.kept], 0.1)[0]


def _scaled_by_a_metric(model: keras.Model, data: tuple) -> list:
    return [gradient * (1.0 + model.tracker.result()) for gradient in gradients_of(model, data)]


def _by_a_variable_of_this_step(model: keras.Model, data: tuple) -> list:
    gradients = gradients_of(model, data)
    model.kept[0].assign(0.5 * model.kept[0] + tf.reduce_mean(data[0]))
    return [tf.sign(gradient) * tf.reduce_mean(model.kept[0]) for gradient in gradients]


EACH_BY_ITSELF = {
    "penalised": (_penalised, "that loss is differentiated again"),
    "after an inner step": (_after_an_inner_step, "that loss is differentiated again"),
    "clipped behind a variable": (_clipped_behind_a_variable, "gradients that this step stored in a variable"),
    "scaled by a metric": (_scaled_by_a_metric, "when each replica has its own value of that variable"),
    "by a variable of this step": (_by_a_variable_of_this_step, "when each replica has its own value of that variable"),
}


@pytest.mark.quick("after an inner step", "scaled by a metric")
@pytest.mark.parametrize("name", EACH_BY_ITSELF)
def test_what_needs_the_whole_batch_before_the_update_is_refused(name: str):
    """Replicas would go on with gradients, or state, of their own."""
    gradients, said = EACH_BY_ITSELF[name]

    def step(model, data):
        model.optimizer.apply(gradients(model, data), model.trainable_variables)

    def prepare(model):
        model.kept = [
            model.add_weight(shape=shape, initializer="zeros", trainable=False, name=f"kept_{index}")
            for index, shape in enumerate([(5, 6), (6,), (6, 1), (1,)])
        ]

    assert_refused(stepping(step, prepare)(), said)


DATA_DEPENDENT = {
    "times the loss": lambda g, x: [t * tf.reduce_mean(tf.square(x)) for t in g],
    "over the largest input": lambda g, x: [t / tf.reduce_max(tf.abs(x)) for t in g],
    "kept if the inputs are large": lambda g, x: [tf.where(tf.reduce_max(x) > 1.0, t, tf.zeros_like(t)) for t in g],
}


@pytest.mark.quick("times the loss")
@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_what_depends_on_a_replicas_own_data_is_refused(name: str):
    def step(model, data):
        model.optimizer.apply(DATA_DEPENDENT[name](gradients_of(model, data), data[0]), model.trainable_variables)

    told = r"""(?s)reads the step's input 'input_0'.*The operation is .*test_transformed.py", line \d+, in <\w+>: \""""
    assert_refused(stepping(step)(), told + name)


@pytest.mark.quick("True-AllReduce")
@pytest.mark.parametrize("builder", ["AllReduce", "PSLoadBalancing"])
@pytest.mark.parametrize("clipped", [True, False])
def test_one_scaled_loss_for_two_optimizers_and_its_value(clipped: bool, builder: str):
    """Both optimizers' gradients count the replica's part already, and what was scaled is logged as it is.

    Clipped, both depend on one norm of all gradients.
    """

    def step(model, data):
        with tf.GradientTape() as tape:
            loss = model.optimizer.scale_loss(tf.reduce_mean(tf.square(model(data[0], training=True) - data[1])))
        gradients, variables = tape.gradient(loss, model.trainable_variables), model.trainable_variables
        if clipped:
            gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
        model.optimizer.apply(gradients[:2], variables[:2])
        model.other.apply(gradients[2:], variables[2:])
        model.tracker.update_state(loss)

    def prepare(model):
        model.other = keras.optimizers.Adam(0.05, name="other")

    def program(front, model):
        model.optimizer.build(model.trainable_variables[:2])
        return fit(front, DATA, **QUIET)

    assert_equal_training(stepping(step, prepare), program, replicas=3, strategy=builder)


@pytest.mark.parametrize("scaled_first", [False, True])
def test_gradients_of_a_scaled_and_of_an_unscaled_loss_are_added_up(scaled_first: bool):
    def step(model, data):
        one, other = (gradients_of(model, data, scaled) for scaled in (scaled_first, not scaled_first))
        model.optimizer.apply([a + b for a, b in zip(one, other, strict=True)], model.trainable_variables)

    assert_equal_training(stepping(step), _fit)


MIXED = {
    "squared": lambda g: [g[0] * g[0], *g[1:]],
    "two of one shape": lambda g: [g[0], tf.sign(g[1]) * tf.transpose(tf.sign(g[2]))[0], *g[2:]],
    "the kernel's column": lambda g: [g[0], tf.sign(g[1]) + tf.reduce_max(g[0], axis=0), *g[2:]],
}


@pytest.mark.quick("squared", "two of one shape")
@pytest.mark.parametrize("name", MIXED)
def test_gradients_that_go_into_each_other(name: str):
    """What one gradient's transformation reads of another is the whole batch's, too."""

    def step(model, data):
        model.optimizer.apply(MIXED[name](gradients_of(model, data)), model.trainable_variables)

    assert_equal_training(stepping(step), _fit)


def test_a_gradient_of_unclear_origin_is_refused_by_name():
    """Two raw gradients of the same shape go into one: which of them the variable's is, nobody can tell."""

    def step(model, data):
        first, second = gradients_of(model, data), gradients_of(model, (2.0 * data[0], data[1]))
        mixed = [tf.sign(one) * tf.abs(other) for one, other in zip(first, second, strict=True)]
        model.optimizer.apply(mixed, model.trainable_variables)

    said = assert_refused(stepping(step)(), "the gradient of 'first/kernel' is transformed by")
    assert "clipnorm, clipvalue, global_clipnorm" in said
