"""The first example of the original project runs as it is, but for its import line and where its data are from.

What it prints is what it prints on one device, where its comments name the lines of the loop as it was.
"""

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

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
        tf.keras.layers.Dropout({dropout}),
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


def printed(folder: Path, dropout: float) -> str:
    """What the distributed program prints, started as its users start it."""
    program = folder / "several.py"
    program.write_text(PROGRAM.format(**DISTRIBUTED, data=DATA, dropout=dropout))
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
    program.write_text(PROGRAM.format(**ON_ONE_DEVICE, data=DATA, dropout=0.0))
    with contextlib.redirect_stdout(output):
        runpy.run_path(str(program))
    return output.getvalue()


def split(text: str) -> tuple[list[str], list[float]]:
    return re.findall("^step.*$", text, re.MULTILINE), [float(value) for value in re.findall("exactly: (.*)", text)]


def test_the_first_example_prints_what_one_device_prints(tmp_path):
    expected, exactly = split(printed_here(tmp_path))
    actual, values = split(printed(tmp_path, dropout=0.0))
    assert len(expected) == 4 and re.fullmatch(r"step: 4, train_loss: \d\.\d{6}", expected[-1])
    assert actual == expected
    assert values == pytest.approx(exactly, rel=1e-12, abs=0)


@pytest.mark.long
def test_the_first_example_trains_with_its_dropout(tmp_path):
    steps, values = split(printed(tmp_path, dropout=0.1))
    assert [line.partition(",")[0] for line in steps] == [f"step: {number}" for number in range(1, 5)]
    assert len(set(values)) == 4 and all(2.0 < value < 2.7 for value in values)
