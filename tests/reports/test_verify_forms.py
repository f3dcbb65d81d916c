"""Every form of data that `fit` takes, `plan` and `verify` take, and a training step is given the same."""

import importlib.util

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.compare import assert_same, named
from tests.support.made_data import Batches
from tests.support.training import distributed

ROWS = 12
RANDOM = np.random.default_rng(3)
WIDE, LONG = RANDOM.normal(size=(ROWS, 3)), RANDOM.normal(size=(ROWS, 4, 2))
TARGETS = np.tanh(WIDE[:, :1] + LONG[:, 0, :1])
WEIGHTS = np.linspace(0.1, 2.0, ROWS)
CLASSES = (TARGETS > 0).astype("int64")


class Seen(keras.Model):
    """Notes what its training step is given."""

    given: list

    def train_step(self, data):
        self.given.append(keras.tree.map_structure(lambda leaf: leaf.dtype.name, data))
        return super().train_step(data)


class OwnFit(Seen):
    """Its `fit` has other arguments than Keras's."""

    def fit(self, source, rows, **others):
        return super().fit(source.batch(rows), **others)


class FewArguments(Seen):
    """Its `fit` takes less than Keras's."""

    def fit(self, source):
        return super().fit(source.batch(6), shuffle=False, verbose=0)


class InOrder(Seen):
    """Its `fit` takes data in their order only."""

    def fit(self, inputs, targets, /, **others):
        return super().fit(inputs, targets, **others)


class OtherOrder(Seen):
    """Its `fit` has Keras's names in another order, and needs one that Keras's has for whole epochs."""

    def fit(self, y, steps_per_epoch, x, **others):
        return super().fit(x, y, **{"batch_size": len(y) // steps_per_epoch, **others})


def _model(outputs: int = 1, loss: str = "mse", kind: type[Seen] = Seen, **arguments) -> Seen:
    wide, long = keras.Input((3,), name="wide"), keras.Input((4, 2), name="long")
    hidden = keras.layers.Concatenate(name="both")([wide, keras.layers.Flatten(name="flat")(long)])
    inputs = {"wide": wide, "long": long} if arguments.pop("by_name", False) else [wide, long]
    made = [keras.layers.Dense(1, name=f"out{index}")(hidden) for index in range(outputs)]
    model = kind(inputs, made if outputs > 1 else made[0], name="two_inputs")
    model.given = []
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False, **arguments)
    return model


def _batch(index):
    rows = slice(4 * index, 4 * index + 4)
    return (WIDE[rows], LONG[rows]), TARGETS[rows], WEIGHTS[rows]


def _generator():
    while True:
        yield (WIDE, LONG), TARGETS


def _dataset():
    return SOURCE.batch(5)


SOURCE = tf.data.Dataset.from_tensor_slices(((WIDE, LONG), TARGETS, WEIGHTS))
LIST, NAMED = [WIDE, LONG], {"wide": WIDE, "long": LONG}
FORMS = {
    "list": (lambda: _model(), lambda: ((LIST, TARGETS), {})),
    "tuple": (lambda: _model(), lambda: ((tuple(LIST), TARGETS), {})),
    "dict": (lambda: _model(by_name=True), lambda: ((NAMED, TARGETS), {})),
    "tensors": (lambda: _model(), lambda: (([tf.constant(WIDE), tf.constant(LONG)], tf.constant(TARGETS)), {})),
    "list of targets": (lambda: _model(2, ["mse", "mse"]), lambda: ((LIST, [TARGETS, TARGETS]), {})),
    "sample weights": (lambda: _model(), lambda: ((LIST, TARGETS), {"sample_weight": WEIGHTS})),
    "class weights": (lambda: _model(loss="binary_crossentropy"),
                      lambda: ((LIST, CLASSES), {"class_weight": {0: 1.0, 1: 3.0}})),
    "dataset": (lambda: _model(), lambda: ((_dataset(),), {})),
    "PyDataset": (lambda: _model(), lambda: ((Batches(_batch, 3, workers=2),), {})),
    "generator": (lambda: _model(), lambda: ((_generator(),), {})),
    "other arguments of fit": (lambda: _model(kind=OwnFit), lambda: ((), {"source": SOURCE, "rows": 5})),
    "in order": (lambda: _model(kind=InOrder), lambda: ((LIST, TARGETS), {})),
    "in another order": (lambda: _model(kind=OtherOrder),
                         lambda: ((), {"x": LIST, "y": TARGETS, "steps_per_epoch": 2})),
    "steps_per_execution": (lambda: _model(steps_per_execution=2), lambda: ((_dataset(),), {})),
}  # fmt: skip
if importlib.util.find_spec("pandas"):
    import pandas as pd

    FORMS["frames"] = (
        lambda: _model(), lambda: (([pd.DataFrame(WIDE), LONG], pd.DataFrame(TARGETS)), {}),
    )  # fmt: skip


@pytest.mark.quick("dict", "class weights", "dataset", "PyDataset", "other arguments of fit", "in another order")
@pytest.mark.parametrize("form", FORMS)
def test_form(form: str):
    make, data = FORMS[form]
    keras.utils.set_random_seed(5)
    model = make()
    before, history, compiled = named(model.weights), object(), model.train_function
    model.history = history
    with distributed(model, replicas=3) as front:
        positional, options = data()
        assert "two_inputs" not in front.plan(*positional, **options)
        assert model.history is history
        assert model.train_function is compiled
        positional, options = data()
        table = front.verify(*positional, steps=2, **options)
        assert table.startswith("2 steps on one device and over all replicas")
        assert_same(before, named(model.weights), tolerance=0.0)
        assert all(weight.path in table for weight in model.trainable_weights)
        noted = list(model.given)
        positional, options = data()
        more = {"steps_per_epoch": 2} if form == "generator" else {}
        front.fit(*positional, **options, **more, shuffle=False, verbose=0)
    assert len({str(each) for each in [*noted, *model.given]}) == 1


def test_a_fit_of_few_arguments():
    with distributed(_model(kind=FewArguments)) as front:
        assert front.verify(SOURCE, steps=4).startswith("2 steps")
        with pytest.raises(ValueError, match=r"FewArguments\.fit takes no callbacks\. Let it take them"):
            front.explain(SOURCE)


def test_explain_takes_the_other_arguments_of_the_last_fit():
    with distributed(_model(kind=OwnFit)) as front:
        front.fit(SOURCE, rows=4, shuffle=False, verbose=0)
        assert front.explain(steps=4).startswith("a step of 4 examples")


def test_metrics_and_the_weights_average_are_as_before():
    model = _model()
    model.compile(keras.optimizers.SGD(0.1, use_ema=True), "mse", metrics=["mae"], jit_compile=False)
    with distributed(model, replicas=2) as front:
        front.fit(LIST, TARGETS, verbose=0)
        before = named([*model.weights, *model.optimizer.variables, *model.metrics_variables])
        front.plan(LIST, TARGETS)
        front.verify(LIST, TARGETS)
        assert_same(before, named([*model.weights, *model.optimizer.variables, *model.metrics_variables]), 0.0)


def test_examples_that_are_not_as_many_are_kerass_own_error():
    with distributed(_model()) as front:
        for call in (front.plan, front.verify):
            with pytest.raises(ValueError, match="Data cardinality is ambiguous"):
                call([WIDE, LONG[:5]], TARGETS)
