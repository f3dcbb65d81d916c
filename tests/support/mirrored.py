"""The letters under `tf.distribute.MirroredStrategy` on two logical CPUs, in a process of its own.

Devices have to be divided before TensorFlow starts, and a strategy's threads stay. Prints one JSON object: by
letter, either `{"values": {name: nested list}}` or `{"error": text}`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
MARK = "outcomes: "


def outcomes_under_mirrored_strategy() -> dict[str, dict]:
    """Runs this module and returns what it printed, with arrays."""
    command = [sys.executable, "-m", "tests.support.mirrored"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    lines = [line for line in run.stdout.splitlines() if line.startswith(MARK)]
    if run.returncode or len(lines) != 1:
        raise RuntimeError(f"{' '.join(command)} ended with {run.returncode}:\n{run.stdout}\n{run.stderr[-4000:]}")
    found = json.loads(lines[0].removeprefix(MARK))
    for result in found.values():
        result["values"] = {name: np.array(value) for name, value in result.get("values", {}).items()}
    return found


def main() -> None:
    """Every letter, one after the other; what fails does not keep the others from running."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_visible_devices([], "GPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

    import keras

    keras.config.set_floatx("float64")
    from tests.support.letters import LETTERS
    from tests.support.training import SEED

    found = {}
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])  # one: the collectives of a second one collide
    for letter in LETTERS:
        try:
            with strategy.scope():
                keras.utils.set_random_seed(SEED)
                model = letter.build()
                values = letter.run(model, model)
            found[letter.letter] = {"values": {name: value.tolist() for name, value in values.items()}}
        except Exception as error:  # what it is is the outcome
            found[letter.letter] = {"error": f"{type(error).__name__}: {error}"}
    print(MARK + json.dumps(found))


if __name__ == "__main__":
    main()
