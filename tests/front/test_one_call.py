"""Calls that are parts of one call: the state comes back to the model once, and whoever looks sees the current one."""

import contextlib
import logging

import pytest

from autodist_core.errors import SessionError
from autodist_keras import DistributedModel
from tests.support.compare import named
from tests.support.models import DENSE, even_data
from tests.support.training import QUIET, assert_equal_training, compiled, distributed, train_distributed


def _one_call(front):
    return front.one_call() if isinstance(front, DistributedModel) else contextlib.nullcontext()


def _looks_and_changes(front, model):
    data, seen = even_data(), []
    kernel = model.get_layer("first").kernel
    for _ in range(2):
        with _one_call(front):
            for step in range(4):
                rows = slice(6 * step, 6 * step + 6)
                seen.append(front.train_on_batch(data.x[rows], data.y[rows]))
                if step == 1:
                    seen.append([weight.copy() for weight in model.get_weights()])
                    kernel.assign(kernel * 0.5)
            seen.append(front.test_on_batch(data.x, data.y))
            seen.append(front.fit(data.x, data.y, epochs=1, **QUIET).history)
            seen.append(model.optimizer.iterations.numpy())
        seen.append(named(model.weights))
        kernel.assign(kernel * 1.5)
    return seen


def test_looks_and_changes_inside_and_between_blocks():
    assert_equal_training(DENSE, _looks_and_changes, replicas=2, strategy="PS")


def test_the_state_comes_home_once(caplog):
    def program(front, model):
        data = even_data()
        with front.one_call():
            for _ in range(3):
                front.train_on_batch(data.x, data.y)
            assert not [line for line in caplog.messages if "bringing the state home" in line]

    with caplog.at_level(logging.DEBUG, "autodist"):
        train_distributed(DENSE, program)
    assert len([line for line in caplog.messages if "bringing the state home" in line]) == 1


def test_a_batch_that_is_refused_leaves_the_block_as_it_was():
    def program(front, model):
        data = even_data()
        with _one_call(front):
            front.train_on_batch(data.x, data.y)
            if isinstance(front, DistributedModel):
                with pytest.raises(ValueError, match="shape"):
                    front.train_on_batch(data.x[:, :2], data.y)
            front.train_on_batch(data.x, data.y)

    assert_equal_training(DENSE, program, strategy="PS")


def test_settings_and_compile_wait_for_the_end_of_the_block():
    front = distributed(compiled(DENSE))
    with front.one_call():
        for refused in (front.close, lambda: front.compile("sgd", "mse"), lambda: setattr(front, "strategy", "PS")):
            with pytest.raises(SessionError, match="this DistributedModel is training: compile, close or change its"):
                refused()
    front.close()
