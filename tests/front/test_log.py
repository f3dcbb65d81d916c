"""A training says once what it does, on standard error and through the logger `autodist`; AUTODIST_LOG silences it."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core import AutoDist, ResourceSpec, distribute, log
from tests.support.layers import Does
from tests.support.models import DENSE, dense_data, stacked
from tests.support.training import compiled, distributed
from tests.support.waiting import until


@contextmanager
def unconfigured() -> Iterator[None]:
    """A program that configures no logging: pytest's own handlers are away, and the level is put back."""
    root, level = logging.getLogger(), log.log.level
    handlers, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = handlers
        log.log.setLevel(level)


def said_in(shown: str) -> str:
    """What standard error shows, without the lines on stages that take long: on a slow machine any may."""
    return "".join(line for line in shown.splitlines(True) if not line.endswith(" s so far\n"))


def test_a_fit_says_once_what_it_does_and_again_with_another_batch(capsys):
    data = dense_data(20)
    with unconfigured(), distributed(compiled(DENSE), "AllReduce", replicas=3) as front:
        for size in (7, 4, 7):
            front.fit(data.x, data.y, batch_size=size, epochs=2, validation_split=0.2, verbose=2)
        shown = capsys.readouterr()
        total = front.plan().splitlines()
        front.compile("sgd", "mse", strategy="PS")
        front.evaluate(data.x, data.y, verbose=0)
        assert not said_in(capsys.readouterr().err)
        front.fit(data.x, data.y, batch_size=2, verbose=0)
    size = next(line for line in total if "travel between" in line).partition("; ")[2].partition(" travel")[0]
    parameters = compiled(DENSE).count_params()
    rest = f"on 1 machine; {parameters} parameters; {size} per step in 1 bucket\n"
    assert said_in(shown.err) == "".join(
        f"autodist: {batch} {rest}" for batch in ("7 per step = 1 x 3 + 2 x 2", "4 per step = 1 x 2 + 2 x 1")
    )
    assert "autodist" not in shown.out and shown.out.startswith("Epoch 1/2\n")
    first, second = said_in(capsys.readouterr().err).splitlines()
    assert first.startswith("autodist: A batch of 2 examples leaves 1 of 3 replicas idle")
    assert second.startswith(f"autodist: 2 per step = 2 x 1 + 1 x 0 on 1 machine; {parameters} parameters; ")


@pytest.mark.parametrize("level", ["error", "debug"])
def test_the_level_is_that_of_the_variable(capsys, level: str):
    data = dense_data(2)
    with unconfigured(), distributed(compiled(DENSE), "AllReduce", replicas=3) as front:
        log.set_up({"AUTODIST_LOG": level})
        front.fit(data.x, data.y, verbose=0)
    said = [line.partition(":")[0] for line in said_in(capsys.readouterr().err).replace("autodist: ", "").splitlines()]
    stages = {"the capture of a step", "the strategy", "the graph of 2 replicas", "bringing the state home"}
    assert not said if level == "error" else stages < {*said}


def test_a_programs_own_handlers_get_what_is_said_and_nothing_else_shows_it(caplog, capsys):
    """Here pytest's handlers are the program's. A level that the program has set stays."""
    data = dense_data(4)
    with distributed(compiled(DENSE), "PS") as front:
        front.fit(data.x, data.y, verbose=0)
    assert [record.levelname for record in caplog.records if "4 per step = 2 x 2" in record.getMessage()] == ["INFO"]
    assert not said_in(capsys.readouterr().err)
    with caplog.at_level(logging.ERROR, logger="autodist"):
        log.set_up({})
        assert log.log.level == logging.ERROR


def test_each_function_of_a_loop_says_once_what_it_does(capsys):
    spec, x = ResourceSpec.local(cpus=2), np.ones((6, 3))

    def step_of(weight):
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.matmul(x, weight) ** 2)
            weight.assign_sub(0.1 * tape.gradient(loss, weight))

        return step

    strategy = distribute(spec, "PS")
    with unconfigured(), AutoDist(spec, "PS") as loop, strategy.autodist:
        for width in (1, 2):
            marked = loop.function(step_of(tf.Variable(np.ones((3, width)))))
            for _ in range(2):
                marked(x)
        step = step_of(tf.Variable(np.ones((3, 4))))
        for batch in strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(x).repeat(2)):
            strategy.run(step, args=(batch,))
    end = "on 1 machine; {} parameters; nothing travels between the replicas"
    said = said_in(capsys.readouterr().err).splitlines()
    assert said == [f"autodist: step: 6 per step = 2 x 3 {end.format(count)}" for count in (3, 6, 12)]


def test_a_stage_that_takes_long_says_what_is_done_while_it_goes_on(capsys):
    with unconfigured():
        with log.stage("the capture of a step", "tracing a step", seconds=0.05):
            assert until(lambda: capsys.readouterr().err) == "autodist: tracing a step: 0.05 s so far\n"
        with log.stage("the capture of a step", "tracing a step", seconds=30):
            pass
    assert not capsys.readouterr().err


def test_a_capture_that_takes_long_says_so(capsys):
    def slow(x):
        """Takes long to trace, and nothing to run."""
        if not tf.executing_eagerly():
            time.sleep(2.2)
        return x

    def model():
        return stacked(keras.Input((3,)), keras.layers.Dense(1), Does(slow))

    with unconfigured(), distributed(compiled(model)) as front:
        capsys.readouterr()
        front.fit(np.ones((4, 3)), np.ones((4, 1)), epochs=2, verbose=0)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "autodist: tracing a step of the model, once for each kind of batch: 2 s so far"
    assert second.startswith("autodist: 4 per step")
