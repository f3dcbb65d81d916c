"""The first example and the integration cases of the original project, with their numbers, by every builder."""

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.loops import BATCHES, assert_equal_loops, autodist, batches, values
from tests.support.programs import ROOT
from tests.support.strategies import BUILDERS

LOSS, W, B = 9.401788, 4.957685, 0.04175035
"""What one step gives, as the original project has it."""


def line(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of one worker around the line 3 x + 2."""
    random = np.random.RandomState(seed)
    inputs, noises = random.randn(1000), random.randn(1000)
    return inputs.astype("float32"), (inputs * 3.0 + 2.0 + noises).astype("float32")


def one_step(front: Any, x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    keras.config.set_floatx("float32")
    weight, bias = tf.Variable(5.0, name="W"), tf.Variable(0.0, name="b")
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.01)

    @front.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((weight * x + bias - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, [weight, bias]), [weight, bias], strict=True))
        return loss

    return float(train_step(x, y)), float(weight), float(bias)


@pytest.mark.quick("PartitionedAR-3")
@pytest.mark.parametrize(
    ("strategy", "replicas"), [(strategy, 2 + (turn + 1) % 2) for turn, strategy in enumerate(BUILDERS)]
)
def test_linear_regression(strategy: str, replicas: int):
    """The arrays are passed as one would feed placeholders."""
    with autodist(strategy, replicas=replicas) as front:
        loss, weight, bias = one_step(front, *line(123))
    np.testing.assert_allclose([loss, weight, bias], [LOSS, W, B], rtol=5e-7)


def trained(front: Any, model: keras.Model, optimizer: Any, loss_of: Any, data: tuple) -> Any:
    """Batches of a loop of three functions."""
    total = keras.metrics.Mean()

    @front.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        total.update_state(loss)
        return loss

    @front.function
    def evaluate(x, y):
        predicted = model(x)
        return loss_of(y, predicted), predicted

    seen = []
    for _ in range(2):
        total.reset_state()
        seen += [train_step(x, y) for x, y in batches(*data)]
        seen.append(total.result())
    evaluated = [evaluate(x, y) for x, y in batches(*data)]
    return {
        "seen": seen, "evaluated": evaluated, "weights": values(model.weights), "optimizer": values(optimizer.variables)
    }


EXAMPLES = sum(BATCHES)


def language_model(front: Any) -> Any:
    words = np.random.default_rng(2).integers(0, 17, (EXAMPLES, 8))
    model = keras.Sequential([
        keras.Input((7,), dtype="int64"), keras.layers.Embedding(17, 4),
        keras.layers.LSTM(5, return_sequences=True), keras.layers.Dense(17),
    ])  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    data = words[:, :-1], words[:, 1:]
    return trained(front, model, keras.optimizers.Adagrad(0.1), loss, data)


class Repeated(keras.layers.Layer):
    """Applies one kernel again and again, in a loop of the graph."""

    def build(self, shape):
        """One kernel."""
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), name="kernel")

    def call(self, x):
        """Three times."""
        kernel = tf.convert_to_tensor(self.kernel)
        _, x = tf.while_loop(
            lambda turn, state: turn < 3, lambda turn, state: (turn + 1, tf.tanh(state @ kernel)), (tf.constant(0), x),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 4])),
        )
        return x


def while_loop(front: Any) -> Any:
    random = np.random.default_rng(4)
    model = keras.Sequential([keras.Input((4,)), Repeated(), keras.layers.Dense(1)])
    data = random.normal(size=(EXAMPLES, 4)), random.normal(size=(EXAMPLES, 1))
    loss = keras.losses.MeanSquaredError()
    return trained(front, model, keras.optimizers.RMSprop(0.01), loss, data)


CASES = [language_model, while_loop]


@pytest.mark.quick("language_model-PartitionedAR", "while_loop-UnevenPartitionedPS")
@pytest.mark.parametrize("case, strategy, replicas", [
    pytest.param(case, strategy, 2 + (turn + row) // 2 % 2, id=f"{case.__name__}-{strategy}")
    for turn, strategy in enumerate(BUILDERS) for row, case in enumerate(CASES) if (turn + row) % 2 == 0
])  # fmt: skip
def test_a_model_of_the_original_project(case: Any, strategy: str, replicas: int):
    assert_equal_loops(case, strategy, replicas)



DATA = """
import numpy as np
tf.keras.utils.set_random_seed(3)
tf.keras.backend.set_floatx("float64")
random = np.random.default_rng(0)
train_images, train_labels = random.random((88, 28, 28)), random.integers(0, 10, 88)
"""

PROGRAM = """
import os
import tensorflow as tf
{begin}
{data}
train_images = train_images[:, :, :, None]
train_images = train_images / 255.0

BATCH_SIZE = 32
STEPS_PER_EPOCH = len(train_images) // BATCH_SIZE
EPOCHS = 2

with {scope}:
    train_dataset = tf.data.Dataset.from_tensor_slices(
        (train_images, train_labels)).repeat(EPOCHS).shuffle(
        10000, seed=1).batch(BATCH_SIZE)

    {iterator}

    model = tf.keras.Sequential([
        tf.keras.layers.Conv2D(32, 3, activation='relu'),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dropout(0.0),
        tf.keras.layers.Dense(256, activation='relu'),
        tf.keras.layers.Dense(10, activation='softmax')
    ])
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy()
    optimizer = tf.keras.optimizers.SGD(learning_rate=0.01)

    @{mark}
    def train_step(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            y_hat = model(x, training=True)
            loss = loss_fn(y, y_hat)
            grads = tape.gradient(loss, model.trainable_variables)
            train_op = optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return optimizer.iterations, loss, train_op

    for epoch in range(EPOCHS):
        for _ in range(STEPS_PER_EPOCH):
            {draw}
            i, loss, _ = train_step(batch)
            print("step: {{}}, train_loss: {{:5f}}".format(int(i), loss))
            print("exactly:", float(loss))
"""

ON_ONE_DEVICE = {
    "begin": "import contextlib", "scope": "contextlib.nullcontext()", "mark": "tf.function",
    "iterator": "train_iterator = iter(train_dataset)", "draw": "batch = next(train_iterator)",
}  # fmt: skip
DISTRIBUTED = {
    "begin": """
from autodist_core import AutoDist
resource_spec_file = os.path.join(os.path.dirname(__file__), 'resource_spec.yml')
d = AutoDist(resource_spec_file, 'PS')
""", "scope": "d.scope()", "mark": "d.function", "draw": "pass",
    "iterator": """train_iterator = tf.compat.v1.data.make_one_shot_iterator(train_dataset)
    batch = train_iterator.get_next()""",
}  # fmt: skip


def printed(folder: Path) -> str:
    """What the distributed program prints, started as its users start it."""
    program = folder / "several.py"
    program.write_text(PROGRAM.format(**DISTRIBUTED, data=DATA))
    (folder / "resource_spec.yml").write_text("nodes:\n  - address: localhost\n    cpus: [0, 1]\n    chief: true\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def printed_here(folder: Path) -> str:
    """What the program prints on one device, without a process of its own."""
    program, output = folder / "one.py", io.StringIO()
    program.write_text(PROGRAM.format(**ON_ONE_DEVICE, data=DATA))
    with contextlib.redirect_stdout(output):
        runpy.run_path(str(program))
    return output.getvalue()


def split(text: str) -> tuple[list[str], list[float]]:
    return re.findall("^step.*$", text, re.MULTILINE), [float(value) for value in re.findall("exactly: (.*)", text)]


def test_the_first_example_prints_what_one_device_prints(tmp_path):
    expected, exactly = split(printed_here(tmp_path))
    actual, values = split(printed(tmp_path))
    assert len(expected) == 4 and re.fullmatch(r"step: 4, train_loss: \d\.\d{6}", expected[-1])
    assert actual == expected
    assert values == pytest.approx(exactly, rel=1e-12, abs=0)
