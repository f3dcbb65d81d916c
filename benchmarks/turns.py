"""Trainings that take turns: one training runs an epoch while the others wait.

A training is one call of `fit` in a child process. At the beginning of every epoch it waits for its turn, and it
measures the epoch from its beginning to its end. Nothing is measured within a step, so the measurement adds nothing to
a step. The commands start the trainings and give the turns; `contenders.py` says what a training does.
"""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

_SECONDS = 5 * 60
_WARM_UP = 2  # epochs before the first turn


@dataclass(frozen=True)
class Job:
    """What one contender trains, and where.

    >>> Job("mlp", steps=8, rounds=12).epochs
    14
    """

    workload: str
    steps: int
    """The steps of an epoch."""
    rounds: int
    spec: Mapping[str, Any] | None = None
    """The resource spec of several hosts; None is this machine."""
    hosts: tuple[str, ...] = ()
    """The addresses of the hosts."""
    rank: int = 0
    """The number of the host on which this process runs."""
    port: int = 0
    """The first of the ports that this contender may take."""
    interface: str = ""
    """The name of the host's network interface."""

    @property
    def epochs(self) -> int:
        """The epochs of the training: those before the first turn, and one for each turn."""
        return self.rounds + _WARM_UP


class Turns:
    """The end of a training: waits for its turn before each epoch, and sends the epoch's time.

    Without a connection it does nothing, as on the hosts other than the first one: they wait for the first one.
    """

    def __init__(self, steps: int, connection: Connection | None = None) -> None:
        self._steps, self._connection = steps, connection
        self._began = 0.0

    def begin(self, epoch: int) -> None:
        """Wait for the turn, unless this is one of the first epochs."""
        if self._connection is not None and epoch >= _WARM_UP:
            self._connection.recv()
        self._began = time.perf_counter()

    def end(self, epoch: int) -> None:
        """Send the milliseconds per step of the epoch."""
        if self._connection is not None and epoch >= _WARM_UP - 1:
            self._connection.send((time.perf_counter() - self._began) * 1000 / self._steps)

    def send(self, value: float) -> None:
        """Send a number, as the time until the first step."""
        if self._connection is not None:
            self._connection.send(value)

    def callback(self, keras: Any) -> Any:
        """A callback for `fit` of Keras 3 or of `tf_keras`."""
        turns = self

        class Epochs(keras.callbacks.Callback):  # type: ignore[misc]
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                turns.begin(epoch)

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                turns.end(epoch)

        return Epochs()


class Training:
    """One contender that trains in a child process. After the first epochs, it waits for its turns.

    `require` is called while the training is waited for, and raises if its programs on other hosts have failed. `stop`
    ends these; it is called when the training has ended, or has failed. A peer has such programs. A wait for a result
    ends after `seconds`.
    """

    def __init__(
        self, contender: str, train: Callable[[Job, Turns], None], job: Job,
        require: Callable[[], None] = lambda: None, stop: Callable[[], None] | None = None, seconds: float = _SECONDS,
    ) -> None:
        self.contender, self.is_peer = contender, stop is not None
        self._require, self._stop = require, stop or (lambda: None)
        self._seconds = seconds
        self._connection, theirs = multiprocessing.Pipe()
        arguments = (theirs, train, job)
        self._process = multiprocessing.get_context("spawn").Process(target=_run, args=arguments, daemon=True)
        self._process.start()

    def wait_until_ready(self) -> float:
        """Wait until the first epochs are done, or the first step is; return the number that is sent then."""
        return self._receive()

    def turn(self) -> float:
        """Train one epoch and return its milliseconds per step."""
        self._connection.send(None)
        return self._receive()

    def end(self) -> None:
        """Wait until `fit` has returned."""
        self._receive()
        self._process.join(_SECONDS)
        self._stop()

    def kill(self) -> None:
        """End the training where it is."""
        self._process.kill()
        self._process.join(_SECONDS)
        self._stop()

    def _receive(self) -> float:
        try:
            until = time.monotonic() + self._seconds
            while not self._connection.poll(1):
                self._require()
                if time.monotonic() > until:
                    raise TimeoutError(f"{self.contender} sent no result within {self._seconds} seconds")
            found = self._connection.recv()
            if isinstance(found, str):
                raise RuntimeError(f"{self.contender} failed:\n{found}")
        except BaseException:
            self.kill()
            raise
        return found


def in_turns(given: Iterable[Training], rounds: int) -> dict[str, list[float]]:
    """Give the turns, in another order in every round; return the milliseconds per step of each contender's rounds.

    If a generator gives the trainings, each starts when the one before is ready.
    """
    trainings = list(given) if isinstance(given, Sequence) else []
    try:
        for training in given:
            if training not in trainings:
                trainings.append(training)
            training.wait_until_ready()
        times: dict[str, list[float]] = {training.contender: [] for training in trainings}
        for turn in range(rounds):
            shift = turn % len(trainings)
            for training in [*trainings[shift:], *trainings[:shift]]:
                times[training.contender].append(training.turn())
        for training in trainings:
            if training.is_peer:
                training.kill()  # its time is known, and ending well is not measured: some take minutes
            else:
                training.end()
    except BaseException:
        for training in trainings:
            training.kill()
        raise
    return times


def _run(connection: Connection, train: Callable[[Job, Turns], None], job: Job) -> None:
    """Train; send the milliseconds per step of each epoch, and at the end 0.0 or the traceback of an error."""
    try:
        train(job, Turns(job.steps, connection))
        connection.send(0.0)
    except BaseException:
        connection.send(traceback.format_exc())
