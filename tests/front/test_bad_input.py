"""Wrong arguments are answered with who, what and the remedy, or with Keras's own error; weights stay as they are."""

import re
import warnings
from functools import partial

import keras
import pytest
import tensorflow as tf

from autodist_core import AutoDist, ResourceSpec
from autodist_core.errors import CaptureError, ResourceSpecError
from autodist_core.strategy import AllReduce
from autodist_keras import DistributedModel
from tests.support.compare import assert_same, named
from tests.support.layers import Does
from tests.support.models import DENSE, dense_data, ready, stacked
from tests.support.own_models import OneLayer
from tests.support.training import QUIET, compiled, distributed, seeded

# What is wrapped, and on what


SPEC = ResourceSpec.local(cpus=2)
WRONG = [
    *((lambda model, thing=thing: DistributedModel(thing, SPEC), r"(?s)keras.Model.*[Rr]eceived")
      for thing in (None, "model.keras", 3, keras.layers.Dense(1))),
    *((lambda model, spec=spec: DistributedModel(model, spec), "(?i)spec") for spec in (3, ["cluster.yml"], object())),
    (lambda model: DistributedModel(model, stratgy="PS"), r"^DistributedModel.* argument 'stratgy'"),
    (lambda model: AutoDist(stratgy="PS"), r"^AutoDist.* argument 'stratgy'"),
    (lambda model: DistributedModel(model, "no_such_cluster.yml"), r"no_such_cluster\.yml"),
    (lambda model: DistributedModel(model, SPEC, strategy="AllReduse").plan(), "(?s)AllReduse.*AllReduce"),
    (lambda model: DistributedModel(model, SPEC, strategy=42).plan(), "(?i)strategy"),
    (lambda model: DistributedModel(DistributedModel(model, SPEC), SPEC), "DistributedModel"),
]  # fmt: skip


def test_what_is_no_model_no_cluster_or_no_strategy():
    for wrap, words in WRONG:
        with pytest.raises((TypeError, ValueError), match=words):
            wrap(compiled(DENSE))


SAID = {
    "model and cluster": (lambda model: DistributedModel("c2.yml", model), TypeError,
                          "DistributedModel(model): expected a keras.Model. Received: builtins.str. The model is the "
                          "first argument and the cluster the second: DistributedModel(model, 'c2.yml')."),
    "a dict first": (lambda model: DistributedModel({"nodes": []}), TypeError,
                     "DistributedModel(model): expected a keras.Model. Received: builtins.dict. The model is the first "
                     "argument and the cluster the second: DistributedModel(model, {...})."),
    "a saved model": (lambda model: DistributedModel("model.keras"), TypeError,
                      "DistributedModel(model): expected a keras.Model. Received: builtins.str. Load it: "
                      "keras.models.load_model('model.keras')."),
    "a short name": (lambda model: DistributedModel(model, "nofile.yml"), ValueError,
                     "nofile.yml: there is no such file (looked in HERE)."),
    "nearly a short name": (lambda model: DistributedModel(model, "gpu.yml"), ValueError,
                            "gpu.yml: there is no such file (looked in HERE). Did you mean 'gpus.yaml'?"),
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_an_error_says_what_to_write(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("e.yml", "gpus.yaml"):
        (tmp_path / name).touch()
    wrap, kind, message = SAID[case]
    with pytest.raises(kind) as caught:
        wrap(compiled(DENSE))
    assert str(caught.value).replace(str(tmp_path), "HERE") == message


def test_a_spec_with_more_gpus_than_the_machine_has():
    spec = ResourceSpec({"nodes": [{"address": "localhost", "chief": True, "gpus": [0, 1, 17]}]})
    data = dense_data()
    model = compiled(DENSE)
    before = named(model.weights)
    front = DistributedModel(model, spec, strategy=AllReduce())
    (note,) = [line for line in front.plan(data.x, data.y).splitlines() if "this machine has no" in line]
    assert re.fullmatch(
        r"  note: this machine has no (GPU:0, GPU:1, )?GPU:17 that TensorFlow can use: the plan is for another "
        "machine, and training is refused here", note)
    with pytest.raises(ResourceSpecError) as caught:
        front.fit(data.x, data.y, **QUIET)
    if "GPU:0" in note:
        assert str(caught.value) == (
            "localhost:GPU:0, localhost:GPU:1, localhost:GPU:17: this machine has no GPUs that TensorFlow can use. "
            "Take them out of 'gpus', and list CPU devices in 'cpus', or install the driver and TensorFlow for "
            "GPUs.")
    else:
        assert "GPU:17: this machine has " in str(caught.value)
    assert_same(before, named(model.weights), tolerance=0.0)


def test_a_wrapper_keeps_its_model_and_a_compile_that_fails_its_strategy():
    model = compiled(DENSE)
    with distributed(model, strategy=AllReduce()) as front:
        with pytest.raises(AttributeError, match=r"keeps its model: wrap the other one, DistributedModel\(other"):
            front.model = keras.Sequential()
        with pytest.raises(ValueError, match="nonsense"):
            front.compile("nonsense", "mse", strategy="PS")
        assert front.model is model and isinstance(front.strategy, AllReduce)


def test_other_sizes_than_the_model_has_are_refused_after_a_fit():
    x, y = tf.ones((8, 4)), tf.ones((8, 3))
    model = stacked(keras.layers.Dense(3))
    with distributed(model) as front:
        front.fit(x, y, **QUIET)
        before = named(model.weights)
        with pytest.raises(ValueError, match=r"expected axis -1 of input shape to have value 4.*\(None, 5\)"):
            front.fit(tf.ones((8, 5)), y, **QUIET)
        with pytest.raises(ValueError, match="Dimensions must be equal, but are 2 and 3"):
            front.fit(x, tf.ones((8, 2)), **QUIET)
        assert_same(before, named(model.weights), tolerance=0.0)
        front.fit(x, y, **QUIET)


def test_a_closed_wrapper_starts_anew_from_the_models_state():
    data, model = dense_data(), compiled(DENSE)
    front = distributed(model)
    front.fit(data.x, data.y, epochs=1, **QUIET)
    front.close()
    front.close()
    front.fit(data.x, data.y, epochs=1, **QUIET)
    twice = compiled(DENSE)
    twice.fit(data.x, data.y, epochs=1, **QUIET)
    twice.fit(data.x, data.y, epochs=1, **QUIET)
    assert_same(named(twice.weights), named(model.weights))
    front.close()


# What is missing


UNCOMPILED = r"'dense' is not compiled.* Call compile\(\)"
NO_OPTIMIZER = r"'dense' was compiled without an optimizer\. Call compile\(optimizer="
MISSING = {
    "compile": (None, {"fit": "compile", "plan": UNCOMPILED, "verify": UNCOMPILED}),
    "optimizer": (
        {"optimizer": None, "loss": "mse"}, {"fit": "(?i)optimizer", "plan": NO_OPTIMIZER, "verify": NO_OPTIMIZER},
    ),
    "loss": ({"optimizer": "sgd"}, {"fit": "No loss to compute"}),
}  # fmt: skip


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_is_asked_for(what: str):
    """What `fit` says is Keras's own error."""
    arguments, said = MISSING[what]
    data, model = dense_data(), seeded(DENSE.build)
    before = named(model.weights)
    with distributed(model) as front:
        if arguments is not None:
            front.compile(**arguments, jit_compile=False)
        for call, words in said.items():
            with pytest.raises(ValueError, match=words):
                getattr(front, call)(data.x, data.y)
    assert_same(before, named(model.weights), tolerance=0.0)


def test_the_plan_of_what_is_no_batch():
    unbuilt = distributed(stacked(keras.layers.Dense(1, name="out"), name="unbuilt"))
    with unbuilt, pytest.raises(ValueError, match=r"(?s)not.*built.*(build|shape|data|fit)"):
        unbuilt.plan()
    data = dense_data()
    with distributed(compiled(DENSE)) as front:
        with pytest.raises(ValueError, match=r"^plan: .* needs targets\. Pass them, plan\(x, y\)"):
            front.plan(data.x)
        for trained in (False, True):
            if trained:
                front.fit(data.x, data.y, **QUIET)
            for given in ([[0.0] * 5], iter(()), None):
                received = rf"Received: x of type {type(given).__name__}, y of type NoneType\."
                with pytest.raises(TypeError, match=rf"^plan\(x, y\): expected the arrays of one batch.*{received}"):
                    front.plan(given)


def test_a_fixed_batch_size_is_refused_by_the_plan_as_by_fit():
    inputs = keras.Input(batch_shape=(4, 5), name="x")
    model = ready(keras.Model(inputs, keras.layers.Dense(1)(inputs), name="fixed"), "sgd", "mse")
    data = dense_data(4)
    with distributed(model) as front:
        for call in (front.plan, front.fit):
            with pytest.raises(ValueError, match=r"'x' of model 'fixed' has a fixed batch size of 4"):
                call(data.x, data.y)
    with distributed(model, replicas=1) as front:
        assert 0.0 < front.fit(data.x, data.y, batch_size=4, verbose=0).history["loss"][0] < float("inf")


class OfEight(OneLayer):
    """Computes on batches of eight examples only."""

    def call(self, x):
        return self.dense(self.fixed(x))


GRAPHS = {
    "gather": lambda x, edges: tf.gather(x, edges[:, 1]),
    "padded": lambda x, edges: tf.gather(x, tf.maximum(edges, 0), axis=0)[:, 0],
    "take": lambda x, edges: keras.ops.take(x, edges[:, 0], axis=0),
    "segments": lambda x, edges: keras.ops.segment_sum(x, edges[:, 1], keras.ops.shape(x)[0]),
    "scatter": lambda x, edges: tf.scatter_nd(edges[:, 1:], x, tf.shape(x)),
    "nd": lambda x, edges: tf.gather_nd(x, edges[:, 1:]),
}
WITHIN = {
    "batch_dims": lambda x, edges: tf.gather(x, edges % 5, batch_dims=1),
    "nd": lambda x, edges: tf.gather_nd(x, edges[:, 1:] % 5, batch_dims=1),
    "argsort": lambda x, edges: tf.gather(x, tf.argsort(x[:, 0])),
    "below the size": lambda x, edges: tf.gather(x, edges[:, 0] % tf.shape(x)[0]),
    "clipped": lambda x, edges: tf.gather(x, tf.minimum(edges[:, 0], tf.shape(x)[0] - 1)),
    "of a table": lambda x, edges: x * tf.gather(tf.ones((9, 5), x.dtype), edges[:, 0]),
}


def _network(function) -> keras.Model:
    x, edges = keras.Input((5,)), keras.Input((2,), dtype="int32")
    taken = Does(lambda given: function(*given), "taken")([keras.layers.Dense(5)(x), edges])
    model = keras.Model([x, edges], keras.layers.Dense(1)(keras.layers.Reshape((-1,))(taken)))
    return ready(model, "sgd", "mse", jit_compile=False)


def _graph():
    data = dense_data(16)
    return [data.x, tf.random.stateless_uniform((16, 2), (1, 2), 0, 8, tf.int32).numpy()], data.y


@pytest.mark.quick("take")
@pytest.mark.parametrize("take", GRAPHS.values(), ids=GRAPHS)
def test_numbers_of_rows_that_come_with_the_batch_are_refused_before_training(take):
    x, y = _graph()
    expected = (
        r"\) in layer 'taken' takes rows of the batch by numbers that come with the batch, and each of 2 replicas "
        r"gets a part of every batch\. They count the rows of the whole batch.*\(batch_dims=1\), or take them from"
    )
    model = seeded(partial(_network, take))
    with distributed(model) as front:
        for call in (front.plan, partial(front.fit, batch_size=8, verbose=0), front.verify, front.evaluate):
            with pytest.raises(CaptureError, match=expected):
                call(x, y)
    with distributed(model, replicas=1) as front:
        front.fit(x, y, batch_size=16, verbose=0)
    spec = {"nodes": [{"address": "localhost", "cpus": [0, 1]}]}
    with AutoDist(spec) as loop, pytest.raises(CaptureError, match=expected.replace(" in layer 'taken'", "")):
        loop.function(lambda x, edges: tf.reduce_sum(take(x, edges)))(*x)


@pytest.mark.quick("nd", "clipped")
@pytest.mark.parametrize("take", WITHIN.values(), ids=WITHIN)
def test_numbers_that_stay_within_an_example_or_the_slice_are_not_refused(take):
    x, y = _graph()
    with distributed(seeded(partial(_network, take)), replicas=3) as front:
        front.fit(x, y, batch_size=8, verbose=0)
        assert front.model.optimizer.iterations == 2


@pytest.mark.parametrize(("fixed", "operation"), [
    (lambda x: tf.ensure_shape(tf.reshape(x, [8, 5]), [None, 5]), "Reshape"),
    (lambda x: x + tf.ones((8, 5), x.dtype), "AddV2"),
    (lambda x: tf.eye(8, dtype=x.dtype) @ x, "MatMul"),
], ids=["reshaped", "added", "multiplied"])  # fmt: skip
def test_an_operation_on_batches_of_one_size_is_refused_before_training(fixed, operation):
    data, model = dense_data(16), ready(OfEight(), "sgd", "mse", jit_compile=False)
    model.fixed = fixed
    expected = rf"{operation} \(own.*\) in the training step fixes how many .*2 replicas .*-1 in the shape"
    with distributed(model) as front:
        for call in (front.plan, partial(front.fit, batch_size=8, verbose=0)):
            with pytest.raises(CaptureError, match=expected):
                call(data.x[:8], data.y[:8])
        # A batch of one example has one replica.
        model.fixed = lambda x: tf.reshape(x, [1, 5])
        front.compile("sgd", "mse", jit_compile=False)
        front.fit(data.x, data.y, batch_size=1, epochs=1, verbose=0)
    assert model.optimizer.iterations == 16


# What deserves a word: in the log, in a warning, or on the screen


def _said(caplog, capsys, action) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return "\n".join([caplog.text, *capsys.readouterr(), *(str(warning.message) for warning in caught)])


def test_a_batch_smaller_than_the_number_of_replicas_is_mentioned(caplog, capsys):
    data = dense_data(10)
    with distributed(compiled(DENSE), replicas=3) as front:
        text = _said(caplog, capsys, lambda: front.fit(data.x, data.y, batch_size=2, epochs=2, verbose=0))
    assert re.search(r"(?s)batch.*2.*3 replicas|3 replicas.*batch.*2", text)


def test_a_single_replica_is_mentioned(caplog, capsys):
    data = dense_data()
    with distributed(compiled(DENSE), replicas=1) as front:
        for use in (lambda: print(front.plan()), lambda: front.fit(data.x, data.y, verbose=0)):
            caplog.clear()
            assert "single replica: " in _said(caplog, capsys, use)


# TensorFlow says so of the tf.data functions that Keras makes of arrays.
@pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_functions_eagerly` option is set")
@pytest.mark.parametrize("by", ["compile", "TensorFlow"])
def test_steps_that_must_run_eagerly_are_refused(by: str):
    data, said = dense_data(), "a step over several devices is a graph. Call .*train the plain model"
    model = seeded(DENSE.build)
    with distributed(model) as front:
        front.compile(**DENSE.compile_arguments("sgd"), run_eagerly=by == "compile")
        tf.config.run_functions_eagerly(by == "TensorFlow")
        try:
            for call in (front.fit, front.evaluate, front.plan):
                with pytest.raises(ValueError, match=said):
                    call(data.x, data.y)
        finally:
            tf.config.run_functions_eagerly(False)
        assert model.train_function is None and model.optimizer.iterations.numpy() == 0
