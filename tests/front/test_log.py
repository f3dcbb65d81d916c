"""A training says once what it does, on standard error and through the logger `autodist`; AUTODIST_LOG silences it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import tensorflow as tf

from autodist_core import AutoDist, ResourceSpec, distribute, log
from tests.support.models import DENSE, dense_data
from tests.support.training import compiled, distributed


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


def test_a_fit_says_once_what_it_does(capsys):
    data = dense_data(20)
    with unconfigured(), distributed(compiled(DENSE), "AllReduce", replicas=3) as front:
        for size in (7, 4):
            front.fit(data.x, data.y, batch_size=size, epochs=2, validation_split=0.2, verbose=2)
        shown = capsys.readouterr()
        total = front.plan().splitlines()
        front.compile("sgd", "mse", strategy="PS")
        front.evaluate(data.x, data.y, verbose=0)
        assert not capsys.readouterr().err
        front.fit(data.x, data.y, batch_size=2, verbose=0)
    size = next(line for line in total if "travel between" in line).partition("; ")[2].partition(" travel")[0]
    parameters = compiled(DENSE).count_params()
    assert shown.err == (
        f"autodist: 7 per step = 1 x 3 + 2 x 2 on 1 machine; {parameters} parameters; {size} per step in 1 bucket\n"
    )
    assert "autodist" not in shown.out and shown.out.startswith("Epoch 1/2\n")
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("autodist: A batch of 2 examples leaves 1 of 3 replicas idle")
    assert second.startswith(f"autodist: 2 per step = 2 x 1 + 1 x 0 on 1 machine; {parameters} parameters; ")


@pytest.mark.parametrize("level", ["error", "debug"])
def test_the_level_is_that_of_the_variable(capsys, level: str):
    data = dense_data(2)
    with unconfigured(), distributed(compiled(DENSE), "AllReduce", replicas=3) as front:
        log.set_up({"AUTODIST_LOG": level})
        front.fit(data.x, data.y, verbose=0)
    said = [line.partition(":")[0] for line in capsys.readouterr().err.replace("autodist: ", "").splitlines()]
    stages = {"the capture of a step", "the strategy", "the graph of 2 replicas", "bringing the state home"}
    assert not said if level == "error" else stages < {*said}


def test_a_programs_own_handlers_get_what_is_said_and_nothing_else_shows_it(caplog, capsys):
    """Here pytest's handlers are the program's. A level that the program has set stays."""
    data = dense_data(4)
    with distributed(compiled(DENSE), "PS") as front:
        front.fit(data.x, data.y, verbose=0)
    assert [record.levelname for record in caplog.records if "4 per step = 2 x 2" in record.getMessage()] == ["INFO"]
    assert not capsys.readouterr().err
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
    said = capsys.readouterr().err.splitlines()
    assert said == [f"autodist: step: 6 per step = 2 x 3 {end.format(count)}" for count in (3, 6, 12)]
