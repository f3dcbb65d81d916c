"""What Keras's loops make of their arguments is on two replicas what it is on one device: each hook, log and result.

`docs/keras.md` lists the behaviours. What other files of this folder show is not repeated here.
"""

import signal
import threading
import weakref
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_keras.training.step_functions import StepFunction
from tests.support.compare import assert_same
from tests.support.made_data import Batches
from tests.support.models import BATCH, DENSE, even_data
from tests.support.recorded import Recorder, error_of, warned
from tests.support.training import QUIET, assert_equal_training, compiled, distributed
from tests.support.waiting import comes_true

DATA = even_data()
X, Y = DATA.x, DATA.y
CLASSES = (np.arange(len(X)) % 3)[:, None]
WEIGHTS = np.linspace(0.2, 2.0, len(X))
ENDS = pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
IN_ORDER = {"verbose": 0, "shuffle": False}


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


def of_unknown_length() -> tf.data.Dataset:
    return dataset().filter(lambda x, y: True)


def generated(batches: int, size: int = 4):
    return ((X[each : each + size], Y[each : each + size]) for each in range(batches))


def endless(*parts):
    while True:
        yield parts


class InBatches(Batches):
    """Counts its epochs."""

    begun = ended = 0

    def on_epoch_begin(self):
        self.begun += 1

    def on_epoch_end(self):
        self.ended += 1


def _arguments_of_fit(front, model):
    seen = Recorder()
    fit = partial(front.fit, X, Y, callbacks=[seen], **QUIET)
    logging = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(own=3.0))
    listed = keras.callbacks.CallbackList([seen, logging], add_history=True, model=model, epochs=1, steps=3)
    calls = {
        "validated in other batches after some epochs": lambda: fit(
            validation_split=0.4, validation_batch_size=3, validation_freq=[1, 3], epochs=3
        ),
        "validated in some steps": lambda: fit(validation_data=(X, Y), validation_steps=2),
        "validated without end": lambda: fit(validation_data=endless(X[:4], Y[:4]), validation_steps=2, epochs=2),
        "tensors divided": lambda: front.fit(
            tf.constant(X), tf.constant(Y), sample_weight=tf.constant(WEIGHTS), validation_split=0.4, **QUIET
        ),
        "classes weighted, and one of them missing": lambda: front.fit(
            X, CLASSES, class_weight={0: 0.5, 2: 3.0}, validation_split=0.4, **QUIET
        ),
        "begun later": lambda: fit(initial_epoch=2, epochs=4),
        "begun after the end": lambda: fit(initial_epoch=3, epochs=2),
        "no epoch": lambda: fit(epochs=0),
        "batches shuffled, and one callback": lambda: front.fit(
            X, Y, callbacks=seen, **{**QUIET, "shuffle": "batch", "epochs": 2}
        ),
        "a list of Keras's": lambda: front.fit(X, Y, callbacks=listed, **QUIET),
    }  # fmt: skip
    for steps, kind, source in ((2, "finite", dataset()), (5, "finite", dataset()), (2, "endless", dataset().repeat())):
        calls[f"{steps} steps of {kind} data"] = partial(
            front.fit, source, steps_per_epoch=steps, epochs=3, callbacks=[seen], **IN_ORDER
        )
    for steps in (2, 5):
        calls[f"{steps} steps of arrays"] = partial(fit, steps_per_epoch=steps, epochs=3)
    outcomes = {}
    for name, call in calls.items():
        history, ended = warned(call)
        outcomes[name] = [history.history, history.epoch, ended, model.history is history]
    return outcomes, seen.calls


def test_what_fit_is_called_with():
    result = assert_equal_training(DENSE, _arguments_of_fit).result
    ended = {name.split("/")[1]: value for name, value in result.items() if name.split("/")[2:] == ["2"]}
    assert {name for name, value in ended.items() if value} == {
        f"{steps} steps of {kind}" for steps in (2, 5) for kind in ("arrays", "finite data")
    }


def _other_calls(front, model):
    seen, classes = Recorder(), (Y > 0).astype("float64")
    outcomes = {
        "evaluate": front.evaluate(X, Y, sample_weight=WEIGHTS, batch_size=BATCH, callbacks=[seen], verbose=0),
        "of a part": front.evaluate(
            X, Y, sample_weight=WEIGHTS, batch_size=BATCH, steps=2, verbose=0, return_dict=True
        ),
        "predict": front.predict(X, batch_size=BATCH, callbacks=[seen], verbose=0),
        "predict a part": front.predict(X, batch_size=BATCH, steps=2, verbose=0),
        "of unknown length": front.predict(of_unknown_length(), verbose=0),
        "of a generator": front.predict(((x,) for x, _ in generated(3)), verbose=0),
        "with other weights for classes": front.train_on_batch(X, classes, class_weight={0: 0.2, 1: 0.3}),
        "predict_on_batch": front.predict_on_batch(X),
    }
    for name in ("train_on_batch", "test_on_batch"):
        numbers, by_name = getattr(front, name)(X, Y, WEIGHTS), getattr(front, name)(X, Y, return_dict=True)
        assert isinstance(numbers, list) and list(by_name) == ["loss", "mae"]
        outcomes[name] = [numbers, by_name]
    for name in ("fit", "evaluate", "predict"):
        # Here the data have no end, and the callback has to end the loop.
        stop = Stopping(name)
        parts = [part[:4] for part in ((X, Y) if name != "predict" else (X,))]
        outcomes[f"{name} stopped"] = [getattr(getattr(front, name)(endless(*parts), callbacks=[stop], verbose=0),
                                               "history", {}), stop.ended]  # fmt: skip
    try:
        keras.config.set_max_epochs(2)
        keras.config.set_max_steps_per_epoch(2)
        limited = partial(front.fit, X, Y, epochs=4, validation_data=(X, Y), callbacks=[seen], **QUIET)
        outcomes["within Keras's limits"] = warned(lambda: limited().history)
    finally:
        keras.config.set_max_epochs(None)
        keras.config.set_max_steps_per_epoch(None)
    return outcomes, seen.calls


class Stopping(keras.callbacks.Callback):
    """Ends a loop after its third batch, as Keras lets it."""

    def __init__(self, loop: str):
        super().__init__()
        hook, self.flag = {"fit": ("train", "training"), "evaluate": ("test", "evaluating"),
                           "predict": ("predict", "predicting")}[loop]  # fmt: skip
        self.ended = 0
        setattr(self, f"on_{hook}_batch_end", self.count)

    def count(self, batch, logs=None):
        self.ended += 1
        setattr(self.model, f"stop_{self.flag}", self.ended == 3)


@ENDS
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
@pytest.mark.filterwarnings("ignore:Limiting (epochs|steps_per_epoch) to 2:UserWarning")
def test_evaluate_predict_and_single_batches():
    result = assert_equal_training(DENSE, _other_calls, strategy="PS").result
    assert {name: value for name, value in result.items() if name.endswith("stopped/1")} == dict.fromkeys(
        ("0/fit stopped/1", "0/evaluate stopped/1", "0/predict stopped/1"), 3
    )


def _several_steps(front, model):
    seen, outcomes = Recorder(), {}
    front.compile("adam", "mse", metrics=["mae"], steps_per_execution=2, jit_compile=False)
    model.unrolled_steps_per_execution = 2
    fit = partial(front.fit, callbacks=[seen], **IN_ORDER)
    calls = {
        "arrays": lambda: fit(X, Y, batch_size=BATCH, validation_data=(X, Y), epochs=2),
        "fewer steps": lambda: fit(X, Y, batch_size=BATCH, steps_per_epoch=1, epochs=2),
        "more steps": lambda: fit(X, Y, batch_size=BATCH, steps_per_epoch=5, epochs=2),
        "endless data": lambda: fit(dataset().repeat(), steps_per_epoch=3, epochs=2),
        "unknown length": lambda: fit(of_unknown_length(), epochs=2),
        "a generator": lambda: fit(generated(5)),
    }
    for name, call in calls.items():
        history, ended = warned(call)
        outcomes[name] = [history.history, history.epoch, ended]
    outcomes["evaluate"] = front.evaluate(X, Y, batch_size=4, callbacks=[seen], verbose=0)
    outcomes["predict"] = front.predict(X, batch_size=4, callbacks=[seen], verbose=0)
    outcomes["one batch"] = front.train_on_batch(X, Y), front.test_on_batch(X, Y), front.predict_on_batch(X)
    return outcomes, seen.calls


def test_several_steps_in_one_execution():
    assert_equal_training(DENSE, _several_steps)


def _sources(front, model):
    outcomes, fit = {}, partial(front.fit, **IN_ORDER)
    for workers in (1, 2):
        finite, never = (InBatches(_batch, count, workers=workers) for count in (4, None))
        outcomes[f"{workers} workers"] = [
            fit(finite, epochs=2).history, fit(never, epochs=2, steps_per_epoch=3).history,
            fit(X, Y, validation_data=finite).history, front.evaluate(finite, verbose=0),
            front.predict(finite, verbose=0), finite.begun, finite.ended,
        ]  # fmt: skip
    broken = Batches(_broken, 4)
    # How many batches were trained before the error is different from run to run where threads make them.
    kept = model.get_weights()
    outcomes["an error in the data"] = "no third batch" in error_of(lambda: fit(broken))
    model.set_weights(kept)
    model.optimizer.iterations.assign(0)
    return outcomes


def _batch(index):
    return X[:4] + index % 3, Y[:4]


def _broken(index):
    if index == 2:
        raise ValueError("no third batch")
    return _batch(index)


def test_python_datasets():
    assert_equal_training(DENSE, _sources, optimizer="sgd")


@ENDS
def test_data_of_unknown_length_count_each_batch_once():
    """Plain Keras 3.15 counts a step more in an epoch that finds no further batch (see docs/exactness.md)."""
    with distributed(compiled(DENSE, "sgd")) as front:
        front.fit(of_unknown_length(), epochs=3, **IN_ORDER)
        assert front.optimizer.iterations == 9
        specs = tf.TensorSpec((BATCH, 5), "float64"), tf.TensorSpec((BATCH, 1), "float64")
        fixed = tf.data.Dataset.from_generator(lambda: iter(dataset()), output_signature=specs)
        assert_same({"": front.evaluate(fixed, verbose=0)}, {"": front.evaluate(X, Y, batch_size=BATCH, verbose=0)})


def _wrong_calls(front, model):
    fit = partial(front.fit, **IN_ORDER)
    calls = {
        "frequency": lambda: fit(X, Y, validation_split=0.4, validation_freq="often"),
        "division of a dataset": lambda: fit(dataset(), validation_split=0.4),
        "targets twice": lambda: fit(dataset(), Y),
        "weights twice": lambda: fit(dataset(), sample_weight=WEIGHTS),
        "two kinds of weights": lambda: fit(X, CLASSES, class_weight={0: 1.0}, sample_weight=WEIGHTS),
        "two kinds of weights of a batch": lambda: front.train_on_batch(
            X, CLASSES, class_weight={0: 1.0}, sample_weight=WEIGHTS
        ),
        "lengths": lambda: fit(X, Y[:5]),
        "no data": lambda: fit("data"),
        "an empty generator": lambda: fit(each for each in ()),
        "an unknown argument": lambda: front.evaluate(X, Y, unknown=1),
    }  # fmt: skip
    return {name: error_of(call) for name, call in calls.items()}


@pytest.mark.parametrize("data", ["arrays", "generator"])
def test_another_thread_drops_the_iterators_of_arrays(data, monkeypatch):
    """TensorFlow's destructor of an iterator may wait for seconds: neither an epoch nor `fit` waits with it.

    A generator must not run any more when `fit` has returned: the program goes on with it.
    """
    threads, known, feed = [], set(), StepFunction.feed

    def watched(function, iterator):
        if id(iterator) not in known:
            weakref.finalize(iterator, lambda: threads.append(threading.current_thread().name))
            known.add(id(iterator))
        return feed(function, iterator)

    monkeypatch.setattr(StepFunction, "feed", watched)
    with distributed(compiled(DENSE)) as front:
        front.fit(*((X, Y) if data == "arrays" else (endless(X, Y),)), epochs=2, steps_per_epoch=1, **IN_ORDER)
        ended = list(threads)
    name = {"arrays": "autodist-drops-data", "generator": "MainThread"}[data]
    assert comes_true(lambda: set(threads) == {name}, within=10)
    assert data == "arrays" or ended == threads


def test_fit_ends_where_no_thread_can_start(monkeypatch):
    """As since Python 3.12 in a thread that trains when the main one has ended."""
    start = threading.Thread.start

    def started(thread):
        if thread.name == "autodist-drops-data":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    with distributed(compiled(DENSE)) as front:
        assert len(front.fit(X, Y, epochs=2, **QUIET).epoch) == 2


def test_ctrl_c_while_the_iterator_is_dropped_leaves_the_model_as_it_was(monkeypatch):
    start = threading.Thread.start

    def interrupted(thread):
        if thread.name == "autodist-drops-data":
            signal.raise_signal(signal.SIGINT)
        start(thread)

    with distributed(compiled(DENSE)) as front:
        front.fit(X, Y, **QUIET)
        own = front.model.train_function
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            front.fit(X, Y, **QUIET)
        assert front.model.train_function is own


def test_wrong_calls_get_kerass_own_errors():
    result = assert_equal_training(DENSE, _wrong_calls, optimizer="sgd").result
    assert "nothing was raised" not in map(str, result.values())


PACKAGES = {
    "pandas": lambda pandas: [
        (pandas.DataFrame(X, columns=list("abcde")), pandas.Series(Y[:, 0]), pandas.Series(WEIGHTS)),
    ],
    "scipy.sparse": lambda sparse: [(sparse.csr_matrix(np.where(X > 0.3, X, 0.0)), Y, WEIGHTS)],
    "grain": lambda grain: [(grain.MapDataset.source(list(zip(X, Y, strict=True))).batch(BATCH), None, None)],
    "torch.utils.data": lambda data: [
        (data.DataLoader(list(zip(X, Y, strict=True)), batch_size=BATCH), None, None),
    ],
}  # fmt: skip


@ENDS
@pytest.mark.parametrize("package", PACKAGES)
def test_data_of_other_packages(package: str):
    module = pytest.importorskip(package, reason=f"`make test-packages` installs {package}")

    def program(front, model):
        outcomes = []
        for x, y, weight in PACKAGES[package](module):
            options = {} if weight is None else {"batch_size": BATCH}
            # Of a dataset of grain, Keras does not know the length.
            fitted = front.fit(x, y, sample_weight=weight, steps_per_epoch=3, **IN_ORDER, **options)
            outcomes.append(fitted.history)
            outcomes.append(front.evaluate(x, y, verbose=0, **options))
            outcomes.append(front.predict(x, verbose=0, **options))
        return outcomes

    assert_equal_training(DENSE, program)
