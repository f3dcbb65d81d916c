"""A program that is killed by SIGKILL again and again and started again: `python -m tests.support.killed FOLDER 3`.

This process imports TensorFlow and trains nothing. Each start is a fork of it, which trains with `Resume` until this
process kills it, at a random moment; the last one completes the training, and one more finds it complete. One fork
trains without being killed. Prints one line of JSON: how often a killed fork had begun later than at the first step,
and which numbers of the killed training differ from the other one's. With a third argument, `hosts`, the program reads
the spec of a cluster from stdin and trains over that.
"""

import json
import os
import random
import re
import select
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np

from autodist_core.errors import NodeLostError
from autodist_keras import DistributedModel
from autodist_keras.callbacks import Resume
from tests.network import namespaces

EXAMPLES, BATCH, STEPS = 202, 10, 19
PAUSE = 0.02
"""Seconds after each step. Without them a start may be killed before its first state is written."""
LOST = 3
"""The status with which a start ends that lost an agent."""


class Says(keras.callbacks.Callback):
    """Writes one byte to a pipe for each step, and another one for the first step of a process that began later."""

    def __init__(self, pipe: int) -> None:
        super().__init__()
        self._pipe = pipe
        self._begun = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        os.write(self._pipe, b"." if self._begun or batch == 0 else b"r")
        self._begun = True
        time.sleep(PAUSE)

    get_state = staticmethod(lambda: None)

    def set_state(self, state: None) -> None:
        pass


def train(folder: Path | None, result: Path, spec: Any, epochs: int, pipe: int) -> None:
    """Train as every start of the program does, and write all numbers to a file."""
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(5)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(EXAMPLES, 5))
    y = np.sin(x[:, :1])
    model = keras.Sequential([
        keras.layers.Dense(16, activation="tanh"), keras.layers.Dropout(0.2, seed=7), keras.layers.Dense(1),
    ])
    model.compile("adam", "mse", metrics=["mae"])
    callbacks = [keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=0.05), Says(pipe)]
    callbacks.append(keras.callbacks.CSVLogger(result.with_suffix(".csv"), append=True))
    if folder is not None:
        callbacks.append(Resume(folder, every=3))
    with DistributedModel(model, spec, "AllReduce") as dm:
        history = dm.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=callbacks, validation_split=0.1)
    numbers = {f"variable {index}": variable.numpy() for index, variable in enumerate(model.variables)}
    numbers |= {f"optimizer {index}": variable.numpy() for index, variable in enumerate(model.optimizer.variables)}
    numbers |= {f"history {name}": np.array(values) for name, values in history.history.items()}
    np.savez(result, **numbers, epochs=np.array(history.epoch))


class Start:
    """One start of the program."""

    def __init__(self, folder: Path | None, result: Path, spec: Any, epochs: int) -> None:
        self.pipe, child_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            status = 1
            try:
                train(folder, result, spec, epochs, child_end)
                status = 0
            except NodeLostError:
                status = LOST
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        os.close(child_end)
        self.said = b""

    def read(self, steps: int | None) -> None:
        """Wait until so many steps have run, or until the end of the program."""
        while steps is None or len(self.said) < steps:
            if not select.select([self.pipe], [], [], 120)[0]:
                raise TimeoutError(f"the program did not go on within 120 s, after {len(self.said)} steps")
            if not (said := os.read(self.pipe, 1 if steps is not None else 1 << 16)):
                return
            self.said += said

    def end(self, kill: int | None = None) -> int:
        """The status with which the program ends, after a process was killed: itself, or an agent."""
        if kill is not None:
            os.kill(kill, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(status)


VICTIMS = ("program", "agent here", "program", "agent there")


def victim(name: str, program: int, other_host: int | None) -> int:
    """The process to kill."""
    if name == "program":
        return program
    there, near = name == "agent there", namespaces.children(program)
    # The command of a client of ssh, which is a child of the program too, names an agent.
    (agent,) = (
        pid for pid, words in namespaces.processes(other_host if there else program)
        if re.match(r"\S*python\S* -m \S+\.on_node\.agent", words) and (there or pid in near)
    )
    return agent


def main() -> None:
    """Run the program as its arguments say."""
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])
    over_hosts = sys.argv[3:] == ["hosts"]
    spec, other_host = json.loads(sys.stdin.readline()) if over_hosts else (None, None)
    chosen, later, killed, epochs = random.Random(kills + 4), 0, Counter[str](), min(8, 2 + kills // 2)
    for number in range(kills):
        start = Start(folder / "states", folder / "killed.npz", spec, epochs)
        start.read(chosen.randrange(1, epochs * STEPS // kills))
        name = VICTIMS[number % len(VICTIMS)] if over_hosts else "program"
        status = start.end(kill=victim(name, start.pid, other_host))
        assert status == (-signal.SIGKILL if name == "program" else LOST), f"{name} killed, status {status}"
        killed[name] += 1
        later += b"r" in start.said
    for name, states in {"killed": "states", "again": "states", "whole": None}.items():
        start = Start(states and folder / states, folder / f"{name}.npz", spec, epochs)
        start.read(None)
        assert start.end() == 0, f"the {name} training failed"
        assert (name != "again") or not start.said, "a training that was complete went on"
    found = {name: dict(np.load(folder / f"{name}.npz")) for name in ("killed", "again", "whole")}
    differ = [
        f"{name} {key}" for name in ("killed", "again") for key, value in found["whole"].items()
        if not np.array_equal(found[name].get(key), value)
    ]
    print(json.dumps({"later": later, "killed": killed, "numbers": len(found["whole"]), "differ": differ}))


if __name__ == "__main__":
    main()
