"""What a custom step makes of its gradients besides training is made of the whole batch's, as on one device."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.strategy import PS
from tests.support.models import dense_data, ready
from tests.support.steps import LooksUp, OwnStep
from tests.support.training import assert_equal_training, distributed, seeded

DATA = dense_data(15)
QUIET = {"verbose": 0, "batch_size": 7, "shuffle": False, "epochs": 2}
"""Batches of seven, seven and one: of three replicas two have nothing to do in the last."""


class Watched(OwnStep):
    """Two dense layers, whose step also does something with its gradients; `prepare` makes what that needs."""

    def __init__(self) -> None:
        super().__init__("watched")
        self.norms = keras.metrics.Mean(name="norms")
        self.running = self.add_weight(shape=(), initializer="ones", trainable=False, name="running")

    @property
    def metrics(self):
        return [self.tracker, self.norms]

    def descend(self, gradients) -> None:
        self.optimizer.apply(gradients, self.trainable_variables)


def _norm_before(model: Watched, loss: Any, gradients: list) -> dict:
    norm = tf.linalg.global_norm(gradients)
    model.descend(gradients)
    return {"norm": norm}


def _norm_of_clipping(model: Watched, loss: Any, gradients: list) -> dict:
    clipped, norm = tf.clip_by_global_norm(gradients, 0.1)
    model.descend(clipped)
    return {"norm": norm, "clipped": tf.linalg.global_norm(clipped)}


def _norm_before_scaling(model: Watched, loss: Any, gradients: list) -> dict:
    model.descend([0.5 * gradient for gradient in gradients])
    return {"norm": tf.linalg.global_norm(gradients)}


def _norm_by_layer(model: Watched, loss: Any, gradients: list) -> dict:
    model.descend(gradients)
    paths = [variable.path.replace("/", "_") for variable in model.trainable_variables]
    return {f"norm_{path}": tf.norm(gradient) for path, gradient in zip(paths, gradients, strict=True)}


def _with_the_loss(model: Watched, loss: Any, gradients: list) -> dict:
    """One number of the update's side, one of compute's, and a variable's."""
    model.descend(gradients)
    return {"ratio": tf.linalg.global_norm(gradients) / loss, "scaled": model.running * tf.norm(gradients[0])}


def _tracked(model: Watched, loss: Any, gradients: list) -> dict:
    model.norms.update_state(tf.linalg.global_norm(gradients))
    model.descend(gradients)
    return {"norms": model.norms.result()}


def _running_mean(model: Watched, loss: Any, gradients: list) -> dict:
    model.descend(gradients)
    model.running.assign(0.9 * model.running + 0.1 * tf.linalg.global_norm(gradients))
    return {"running": model.running.value}


def _clipped_by_history(model: Watched, loss: Any, gradients: list) -> dict:
    """Clipped to what norms were before, as some recipes have it."""
    clipped, norm = tf.clip_by_global_norm(gradients, 0.5 * model.running)
    model.running.assign(0.9 * model.running + 0.1 * norm)
    model.descend(clipped)
    return {"running": model.running.value, "norm": norm}


def _the_gradient_itself(model: Watched, loss: Any, gradients: list) -> dict:
    model.descend(gradients)
    return {"bias": gradients[-1], "largest": tf.reduce_max(tf.abs(gradients[0]))}


def _signs(model: Watched, loss: Any, gradients: list) -> dict:
    """How many entries go up: an integer that all replicas agree on."""
    model.descend(gradients)
    return {"up": tf.add_n([tf.math.count_nonzero(gradient > 0.0) for gradient in gradients])}


def _twice(model: Watched, loss: Any, gradients: list) -> dict:
    """The second gradients are those at the weights that the first ones led to."""
    norms = {"first": tf.linalg.global_norm(gradients)}
    model.descend(gradients)
    _, again = model.again()
    model.descend(again)
    return norms | {"second": tf.linalg.global_norm(again), "both": tf.linalg.global_norm([*gradients, *again])}


def _counted(model: Watched, loss: Any, gradients: list) -> dict:
    """A function that writes, and whose value is a result."""

    @tf.function
    def count(gradients):
        model.running.assign_add(1.0)
        return tf.linalg.global_norm(gradients)

    norm = count(gradients)
    model.descend(gradients)
    return {"norm": norm}


def _follows_weights(model: Watched, loss: Any, gradients: list) -> dict:
    """A variable that looks at the weights as the update has left them."""
    model.descend(gradients)
    model.running.assign(0.5 * model.running + tf.norm(model.first.kernel))
    return {}


def _asserted(model: Watched, loss: Any, gradients: list) -> dict:
    """What nothing reads, before the update and behind it, and an assertion on what was tracked."""
    norm = tf.linalg.global_norm(gradients)
    with tf.control_dependencies([tf.debugging.assert_less(norm, tf.constant(1e9, norm.dtype))]):
        gradients = [tf.identity(gradient) for gradient in gradients]
    tf.debugging.assert_all_finite(gradients[0], "not finite")
    model.norms.update_state(norm)
    tf.debugging.assert_less(model.norms.result(), tf.constant(1e9, norm.dtype))
    model.descend(gradients)
    return {"norms": model.norms.result()}


def _changed(model: Watched, loss: Any, gradients: list) -> dict:
    """Changed by hand in several ways, one after the other."""
    found = tf.reduce_any([tf.reduce_any(tf.math.is_nan(gradient)) for gradient in gradients])
    gradients = [tf.where(found, tf.zeros_like(gradient), gradient) for gradient in gradients]
    gradients = [tf.clip_by_norm(gradient, 0.1) + 0.01 * tf.sign(gradient) for gradient in gradients]
    noise = [tf.random.stateless_normal(gradient.shape, (1, 2), dtype=gradient.dtype) for gradient in gradients]
    model.descend([gradient + 0.01 * drawn for gradient, drawn in zip(gradients, noise, strict=True)])
    return {}


def _of_another_loss(model: Watched, loss: Any, gradients: list) -> dict:
    """Gradients that are not applied: each replica has those of its own examples."""
    with tf.GradientTape() as tape:
        squares = tf.square(model(model.given()))
    model.descend(gradients)
    return {"slope": tf.norm(tape.gradient(squares, model.trainable_variables)[0])}


STEPS: dict[str, Callable[[Watched, Any, list], dict]] = {
    "norm before apply": _norm_before, "norm of clipping": _norm_of_clipping, "norm before scaling":
    _norm_before_scaling, "norm by layer": _norm_by_layer, "with the loss": _with_the_loss, "tracked": _tracked,
    "running mean": _running_mean, "clipped by history": _clipped_by_history,
    "the gradient itself": _the_gradient_itself, "signs": _signs, "twice": _twice, "counted": _counted,
    "follows weights": _follows_weights, "asserted": _asserted, "changed": _changed,
}  # fmt: skip


def _model(name: str) -> Watched:
    """A compiled model with one of the steps above."""

    class Stepping(Watched):
        """Takes the step."""

        def train_step(self, data):
            self.given = lambda: data[0]
            self.again = lambda: self.loss_and_gradients(data)
            loss, gradients = self.loss_and_gradients(data)
            return {"loss": loss, **(STEPS | {"another loss": _of_another_loss})[name](self, loss, gradients)}

    model = ready(Stepping(), keras.optimizers.Adam(0.05, name="adam"), jit_compile=False)
    model(DATA.x)
    return model


def _fit(front: Any, model: Watched) -> dict:
    """History has the last batch's logs only."""
    kept: list[dict] = []
    keep = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: kept.append(
        {name: np.array(value) for name, value in logs.items()}))  # fmt: skip
    history = front.fit(DATA.x, DATA.y, callbacks=[keep], **QUIET).history
    return {"logs": kept, "history": history}


BUILDS = {name: partial(_model, name) for name in STEPS}
CASES = [
    (name, builder, replicas, share_memory)
    for index, name in enumerate(STEPS)
    for builder, replicas, share_memory in [
        (("AllReduce", 2, False), ("PS", 3, False), ("PSLoadBalancing", 3, False), ("PartitionedPS", 2, False),
         ("AllReduce", 3, True), ("PartitionedAR", 3, False))[(index + offset) % 6] for offset in (0, 3)
    ]
]  # fmt: skip


@pytest.mark.quick("norm before scaling-PSLoadBalancing-3-False", "twice-AllReduce-3-True")
@pytest.mark.parametrize("name, builder, replicas, share_memory", CASES)
def test_is_the_whole_batchs(name: str, builder: str, replicas: int, share_memory: bool):
    assert_equal_training(BUILDS[name], _fit, strategy=builder, replicas=replicas, share_memory=share_memory)


@pytest.mark.parametrize("name", ["norm of clipping", "tracked", "changed"])
def test_has_no_note(name: str):
    with distributed(seeded(BUILDS[name])) as front:
        assert "is not known" not in front.plan(DATA.x, DATA.y)


def test_what_is_made_of_other_gradients_has_a_note():
    said = "note: whether the gradient that Mul (norm/mul) in the training step uses is one device's is not known"
    with distributed(seeded(partial(_model, "another loss"))) as front:
        assert said in front.plan(DATA.x, DATA.y)


def test_replicas_that_do_not_wait_log_their_own():
    """There is no whole batch's gradient where each goes on with its own."""
    with distributed(seeded(BUILDS["tracked"]), strategy=PS(staleness=1)) as front:
        norms = np.array(front.fit(DATA.x, DATA.y, **QUIET).history["norms"])
    assert np.isfinite(norms).all() and (norms > 0.0).all()


class Looks(LooksUp):
    """Returns what it makes of the rows."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        rows, *others = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply([rows, *others], self.trainable_variables)
        return {"norm": tf.linalg.global_norm([rows, *others]), "rows": tf.size(rows.indices)}


@pytest.mark.quick("PartitionedPS-2")
@pytest.mark.parametrize("builder, replicas", [("AllReduce", 2), ("Parallax", 3), ("PartitionedPS", 2)])
def test_of_rows(builder: str, replicas: int):
    """A row that several examples look up counts for each, as on one device."""
    random = np.random.default_rng(4)
    ids, y = random.integers(0, 9, (11, 3)).astype("int32"), random.normal(size=(11, 1))

    def build() -> keras.Model:
        return ready(Looks(9, 4), keras.optimizers.Adagrad(0.1), "mse", jit_compile=False)

    def program(front, model):
        return front.fit(ids, y, **QUIET).history

    expected = assert_equal_training(build, program, strategy=builder, replicas=replicas)
    assert [expected.result[f"rows/{epoch}"] for epoch in (0, 1)] == [4 * 3, 4 * 3]
