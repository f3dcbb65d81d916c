"""Others meanwhile: a second wrapper, models that share layers, other threads. None of them loses a number."""

import contextlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import SessionError
from autodist_core.runtime.local.session import LocalSession
from autodist_core.strategy import PS
from tests.support.compare import assert_same, differences, flat, named, state_in_order
from tests.support.layers import Calls
from tests.support.models import DENSE, even_data
from tests.support.training import (
    QUIET,
    assert_equal_training,
    assert_same_numbers,
    compiled,
    distributed,
    seeded,
    trained,
)

DATA = even_data()
BATCHES = [slice(first, first + 7) for first in (0, 7, 14)]
BY_STRATEGY = pytest.mark.parametrize("builder, shares", [("AllReduce", True), ("AllReduce", False), ("PS", False)])


def _elsewhere(call: Callable[[], object]) -> None:
    """Call in another thread, and wait."""
    ThreadPoolExecutor().submit(call).result()


def _at(event: str, action: Callable[[int], None]) -> keras.callbacks.Callback:
    return keras.callbacks.LambdaCallback(**{event: lambda index, logs: action(index)})


def test_a_refused_second_wrapper_changes_nothing():
    refused = []

    def program(front, model):
        def halve(batch: int):
            if batch == 1:
                model.optimizer.learning_rate.assign(0.5 * model.optimizer.learning_rate)
                model.layers[0].kernel.assign(0.5 * model.layers[0].kernel)

        def intrude(batch: int):
            for call in (partial(second.evaluate, verbose=0), second.verify):
                with pytest.raises(SessionError, match="being trained by another DistributedModel"):
                    call(DATA.x, DATA.y)
            refused.append(batch)

        options = {"epochs": 2, **QUIET}
        if front is model:
            return front.fit(DATA.x, DATA.y, callbacks=[_at("on_train_batch_end", halve)], **options).history
        with distributed(model, replicas=3) as second:
            second.evaluate(DATA.x, DATA.y, verbose=0)
            callbacks = [_at("on_train_batch_end", intrude), _at("on_train_batch_end", halve)]
            return front.fit(DATA.x, DATA.y, callbacks=callbacks, **options).history

    assert_equal_training(DENSE, program)
    assert len(refused) > 2


def _autoencoder() -> tuple[keras.Model, keras.Model]:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,))
    code = keras.layers.Dense(4, activation="tanh")(inputs)
    encoder, whole = keras.Model(inputs, code), keras.Model(inputs, keras.layers.Dense(5)(code))
    for model, rate in ((encoder, 0.05), (whole, 0.1)):
        model.compile(keras.optimizers.SGD(rate, momentum=0.9), "mse", jit_compile=False)
    return encoder, whole


@pytest.mark.quick("PS-False-trains")
@pytest.mark.parametrize("trains", [True, False], ids=["trains", "looks"])
@BY_STRATEGY
def test_models_that_share_layers_train_and_look_within_each_others_fit(builder, shares, trains: bool):
    """The whole trains; at the end of each epoch its encoder predicts, and trains on its own."""
    codes = np.tanh(DATA.x[:, :4])

    def program(front_of):
        encoder, whole = _autoencoder()
        part, front, seen = front_of(encoder), front_of(whole), []
        part.predict(DATA.x, verbose=0)

        def meanwhile(epoch: int):
            seen.append(part.predict(DATA.x, verbose=0))
            if trains:
                part.fit(DATA.x, codes, epochs=1, **QUIET)
                seen.append([weight.copy() for weight in whole.get_weights()])

        options = {"epochs": 2, "callbacks": [_at("on_epoch_end", meanwhile)], **QUIET}
        history = front.fit(DATA.x, DATA.x, **options).history
        return {"history": history, "seen": seen, "encoder": trained(encoder).state, "whole": trained(whole).state}

    assert_same_numbers(program, strategy=builder, share_memory=shares)


def test_a_model_that_is_compiled_while_it_trains_keeps_no_function_of_before():
    """The model's own `compile` is refused then; the class's cannot be."""
    plain, model = compiled(DENSE), compiled(DENSE)
    again = keras.callbacks.LambdaCallback(
        on_train_end=lambda logs: keras.Model.compile(model, "sgd", "mse", jit_compile=False)
    )
    for each in (plain, model):
        each.fit(DATA.x, DATA.y, **QUIET)
    with distributed(model) as front:
        front.fit(DATA.x, DATA.y, callbacks=[again], **QUIET)
    plain.fit(DATA.x, DATA.y, **QUIET)
    plain.compile("sgd", "mse", jit_compile=False)
    histories = [each.fit(DATA.x, DATA.y, **QUIET).history for each in (plain, model)]
    assert_same(flat(histories[0]), flat(histories[1]))
    assert_same(*map(state_in_order, (plain, model)))


@pytest.mark.quick("AllReduce-True-writes")
@pytest.mark.parametrize("writes", [True, False], ids=["writes", "looks"])
@BY_STRATEGY
def test_a_look_from_another_thread_in_the_middle_of_a_step_loses_nothing(builder, shares, writes: bool):
    """Every step's weights are asked for while it runs; what is written then counts from the next step on, or in it."""
    asked, looked, over = threading.Event(), threading.Event(), threading.Event()

    def wait():
        asked.set()
        assert looked.wait(30)

    base = seeded(DENSE.build)
    model = keras.Sequential([*base.layers[:1], Calls(lambda rows: wait()), *base.layers[1:]])
    model.build(base.input_shape)
    model.compile(**DENSE.compile_arguments("adam"))
    rate = model.optimizer.learning_rate
    first = float(rate.numpy())

    def look():
        while not over.is_set():
            if asked.wait(0.05):
                asked.clear()
                for variable in (*model.weights, *model.optimizer.variables):
                    variable.numpy()
                if writes:
                    rate.assign(0.002)
                looked.set()

    with _beside(look, over), distributed(model, strategy=builder, share_memory=shares) as front:
        for rows in BATCHES:
            looked.clear()
            front.train_on_batch(DATA.x[rows], DATA.y[rows])

    def expected(*rates: float):
        plain = compiled(DENSE)
        for rows, plain.optimizer.learning_rate in zip(BATCHES, rates, strict=True):
            plain.train_on_batch(DATA.x[rows], DATA.y[rows])
        return trained(plain).state

    later, got = 0.002 if writes else first, trained(model).state
    # On one machine the rate is a plain variable, which the first step may read after it was written.
    at_once = writes and differences(expected(first, later, later), got)
    assert_same(expected(later if at_once else first, later, later), got)


@contextlib.contextmanager
def _beside(function: Callable[[], None], over: threading.Event, count: int = 1):
    """So many threads run a function until they are told that it is over; what it raises is raised here."""
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(function) for _ in range(count)]
        try:
            yield
        finally:
            over.set()
    for each in running:
        each.result()


@contextlib.contextmanager
def _readers(model: keras.Model, count: int):
    """Threads that look at everything, all the time, and are switched to as often as can be."""
    over, before = threading.Event(), sys.getswitchinterval()

    def read():
        while not over.is_set():
            for variable in (*model.weights, *model.optimizer.variables):
                variable.numpy()

    sys.setswitchinterval(1e-6)
    try:
        with _beside(read, over, count):
            yield
    finally:
        sys.setswitchinterval(before)


@pytest.mark.quick("PS-False")
@BY_STRATEGY
def test_threads_that_look_at_everything_change_nothing(builder, shares):
    """While callbacks look and write, too."""

    def program(front, model):
        def write(batch: int):
            model.optimizer.learning_rate.assign(0.9 * model.optimizer.learning_rate)
            if batch % 2:
                model.layers[0].kernel.assign(0.95 * model.layers[0].kernel)

        options = {"epochs": 2, "callbacks": [_at("on_train_batch_end", write)], **QUIET}
        with _readers(model, 0 if front is model else 2):
            return front.fit(DATA.x, DATA.y, **options).history

    assert_equal_training(DENSE, program, strategy=builder, share_memory=shares)


@pytest.mark.quick("ahead")
@pytest.mark.parametrize("strategy, each", [(PS(staleness=2), 1), (PS(sync=False), 2)], ids=["ahead", "apart"])
def test_no_update_is_lost_to_threads_that_look_while_replicas_run_ahead(strategy, each: int):
    model, steps = compiled(DENSE), []
    with distributed(model, strategy=strategy) as front, _readers(model, 1):
        for _ in range(3):
            front.fit(DATA.x, DATA.y, epochs=1, **QUIET)
            steps.append(int(model.optimizer.iterations))
    assert steps == [3 * each * (fit + 1) for fit in range(3)]


@pytest.mark.quick("AllReduce-True")
@pytest.mark.parametrize("strategy, shares", [("AllReduce", True), ("AllReduce", False), (PS(staleness=2), False)])
def test_python_in_a_step_may_look_at_a_weight(strategy, shares):
    """And sees what the step has, where no step is ahead of another."""
    base, plain, seen, before = seeded(DENSE.build), compiled(DENSE), [], []
    model = keras.Sequential([Calls(lambda rows: seen.append(base.layers[-1].kernel.numpy())), *base.layers])
    model.build(base.input_shape)
    model.compile(**DENSE.compile_arguments("adam"))
    seen.clear()
    with distributed(model, strategy=strategy, share_memory=shares) as front:
        for rows in BATCHES:
            before.append(plain.layers[-1].kernel.numpy())
            front.train_on_batch(DATA.x[rows], DATA.y[rows])
            plain.train_on_batch(DATA.x[rows], DATA.y[rows])
    assert len(seen) == 6
    assert_same(trained(plain).state, trained(model).state)
    assert_same(flat(before), flat(seen[::2]))


def test_of_two_threads_that_call_at_once_one_is_refused():
    model, plain = compiled(DENSE), compiled(DENSE)
    barrier, answers = threading.Barrier(2), []

    def fit():
        barrier.wait()
        try:
            front.fit(DATA.x, DATA.y, epochs=1, **QUIET)
            answers.append("trained")
        except SessionError as error:
            answers.append(str(error))

    with distributed(model) as front, ThreadPoolExecutor() as pool:
        for _ in range(2):
            pool.submit(fit)
    assert sorted(answers) == ["this DistributedModel is training in another thread; one call at a time.", "trained"]
    for each in (plain, plain, model):
        each.fit(DATA.x, DATA.y, epochs=1, **QUIET)
    assert_same(named(plain.weights), named(model.weights))


def test_the_plain_models_methods_in_other_threads_and_verify_are_refused_while_it_trains():
    model, plain, refusals = compiled(DENSE), compiled(DENSE), []

    def call():
        for method in (model.predict, lambda x, verbose: model.evaluate(x, DATA.y, verbose=verbose)):
            try:
                method(DATA.x, verbose=0)
            except SessionError as error:
                refusals.append(str(error))

    def meanwhile(batch: int):
        _elsewhere(call)
        with pytest.raises(SessionError, match=r"^this DistributedModel is training: verify afterwards\.$"):
            front.verify(DATA.x, DATA.y)

    plain.fit(DATA.x, DATA.y, epochs=2, **QUIET)
    with distributed(model) as front:
        front.fit(DATA.x, DATA.y, epochs=2, callbacks=[_at("on_train_batch_end", meanwhile)], **QUIET)
    assert set(refusals) == {"this DistributedModel is training in another thread; one call at a time."}
    assert len(refusals) > 4
    assert_same(named(plain.weights), named(model.weights))
    assert model.predict(DATA.x, verbose=0).shape == (len(DATA.x), 1)


def test_a_function_is_traced_on_a_weight_that_another_thread_was_shown():
    model, plain, seen = compiled(DENSE), compiled(DENSE), []
    kernel = model.layers[0].kernel

    def meanwhile(batch: int):
        if batch == 1:
            _elsewhere(kernel.numpy)
        if batch == 2:
            seen.append(tf.function(lambda: kernel + 0.0)().numpy())

    plain.fit(DATA.x, DATA.y, epochs=1, **QUIET)
    with distributed(model) as front:
        front.fit(DATA.x, DATA.y, epochs=1, callbacks=[_at("on_train_batch_end", meanwhile)], **QUIET)
    assert_same({"kernel": plain.layers[0].kernel.numpy()}, {"kernel": seen[0]})


def test_a_change_is_kept_if_ctrl_c_ends_its_load(monkeypatch):
    model, changed, spread = compiled(DENSE), [], LocalSession.spread

    def change(batch: int):
        if batch == 1:
            model.layers[0].kernel.assign(0.5 * model.layers[0].kernel)
            changed.append(model.layers[0].kernel.numpy())

    def interrupted(session, names):
        if changed:
            raise KeyboardInterrupt
        spread(session, names)

    monkeypatch.setattr(LocalSession, "spread", interrupted)
    with distributed(model) as front:
        with pytest.raises(KeyboardInterrupt):
            front.fit(DATA.x, DATA.y, callbacks=[_at("on_train_batch_end", change)], **QUIET)
        assert_same({"kernel": changed[0]}, {"kernel": model.layers[0].kernel.numpy()})
