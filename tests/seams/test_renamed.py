"""Each seam is renamed in turn, as an upgrade of Keras or TensorFlow would, and the error names it."""

import inspect
import sys

import keras
import pytest
import tensorflow as tf

from autodist_core.errors import SeamError
from autodist_core.seams import seam as seams
from autodist_core.seams import table as core_seams
from autodist_core.seams.seam import AT_USE, ATTRIBUTE, BEHAVIOUR, STORED, TEXT
from autodist_keras import DistributedModel
from autodist_keras import seams as keras_seams

pytestmark = pytest.mark.oldest
TABLE = (*keras_seams.TABLE, *core_seams.TABLE)
CHECKED = [seam for seam in TABLE if seam.kind != AT_USE]


class Renamed:
    """Hides a name of a class, whichever of its bases defines it."""

    def __get__(self, instance, kind):
        raise AttributeError("renamed")


def with_name(code, before, after):
    """Code in which a name, or a text, is another one, in the functions that it defines too."""
    consts = tuple(
        with_name(constant, before, after) if inspect.iscode(constant) else after if constant == before else constant
        for constant in code.co_consts
    )
    names = tuple(after if name == before else name for name in code.co_names)
    return code.replace(co_consts=consts, co_names=names)


def rename(monkeypatch, seam):
    owner = seams.owner(seam.owner)
    if seam.kind == ATTRIBUTE and inspect.isclass(owner):
        monkeypatch.setattr(owner, seam.name, Renamed())
    elif seam.kind == ATTRIBUTE:
        monkeypatch.delattr(owner, seam.name)
    elif seam.kind in (STORED, TEXT):
        changed = set()
        for function in seams.functions(owner):
            if id(function) not in changed:
                changed.add(id(function))
                monkeypatch.setattr(function, "__code__", with_name(function.__code__, seam.name, "_renamed"))


@pytest.mark.parametrize("seam", [s for s in CHECKED if s.kind != BEHAVIOUR], ids=lambda seam: seam.label)
def test_a_missing_name_is_named(seam, monkeypatch):
    assert seam.problem() == ""
    with monkeypatch.context() as patches:
        rename(patches, seam)
        found = seam.problem()
    root = seam.owner.partition(".")[0]
    assert seam.label in found and seam.rests in found
    if root in seams.SUPPORTED:
        first, last = (".".join(map(str, version)) for version in seams.SUPPORTED[root])
        assert f" {sys.modules[root].__version__} " in found and found.endswith(f"; supported: {first} to {last}")
    assert seam.problem() == ""


@pytest.mark.parametrize("seam", [s for s in CHECKED if s.callers and s.kind == ATTRIBUTE], ids=lambda seam: seam.label)
def test_a_name_that_nobody_uses_is_named(seam, monkeypatch):
    for caller in seam.callers:
        where, _, method = caller.rpartition(".")
        function = inspect.unwrap(getattr(seams.owner(where or seam.owner), method))
        with monkeypatch.context() as patches:
            patches.setattr(function, "__code__", with_name(function.__code__, seam.name, "_renamed"))
            assert f"does not use {seam.label} in {caller}, on which {seam.rests} rests" in seam.problem()


@pytest.mark.parametrize("seam", [s for s in CHECKED if s.parameters is not None], ids=lambda seam: seam.label)
def test_another_parameter_is_named(seam, monkeypatch):
    monkeypatch.setattr(seams.owner(seam.owner), seam.name, lambda self, new: None)
    assert f"has another {seam.label}: its parameters are ('self', 'new')" in seam.problem()


def add_variable(self, shape, initializer, dtype=None, aggregation="mean", name=None):
    raise AssertionError("only its signature is looked at")


BROKEN = {
    "stateful draws have an attribute seed2": lambda patches: patches.setattr(
        seams.owner(core_seams.OP_DEF.owner), "get", lambda name: None
    ),
    "CompileLoss.Loss is a named tuple with a field loss": lambda patches: patches.setattr(
        seams.owner(keras_seams._COMPILE_LOSS).Loss, "_fields", ("path", "function")
    ),
    "the variables of a metric are added up over replicas unless it says otherwise": lambda patches: patches.setattr(
        keras.metrics.Metric, "add_variable", add_variable
    ),
    "models of Keras's own are classes in modules below keras": lambda patches: patches.setattr(
        keras.Sequential, "__module__", "keras_models"
    ),
    "keras.ops.take makes negative indices count from the end by SelectV2, Less and AddV2": (
        lambda patches: patches.setattr(keras.ops, "take", lambda x, indices, axis: tf.gather(x, indices, axis=axis))
    ),
    "a loop takes the data from an adapter of Keras's that is passed as x": lambda patches: patches.setattr(
        seams.owner("keras.src.trainers.data_adapters"), "get_data_adapter", lambda **options: None
    ),
}  # fmt: skip
"""What an upgrade might do to each behaviour."""


@pytest.mark.parametrize("seam", [s for s in CHECKED if s.kind == BEHAVIOUR], ids=lambda seam: seam.label)
def test_another_behaviour_is_named(seam, monkeypatch):
    assert seam.problem() == ""
    BROKEN[seam.name](monkeypatch)
    assert f"does not behave as {seam.label} (" in seam.problem() and seam.rests in seam.problem()


def test_the_first_wrap_lists_everything_that_is_missing(monkeypatch):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    keras_seams.check.cache_clear()
    monkeypatch.setattr(keras.layers.BatchNormalization, "_moments", Renamed())
    monkeypatch.setattr(keras, "__version__", "3.16.0")
    with pytest.raises(SeamError) as caught:
        DistributedModel(model)
    assert str(caught.value) == (
        "Keras 3.16.0 has no BatchNormalization._moments, on which synchronized batch normalization rests; "
        "supported: 3.12 to 3.15. Install a supported version, or an autodist-keras that supports this one."
    )
    monkeypatch.setattr(keras.optimizers.Optimizer, "_get_variable_index", Renamed())
    with pytest.raises(SeamError) as caught:
        DistributedModel(model)
    assert len(caught.value.problems) == 2
    monkeypatch.undo()
    DistributedModel(model).close()


def test_an_untested_version_is_mentioned_once(monkeypatch, caplog):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    keras_seams.check.cache_clear()
    monkeypatch.setattr(keras, "__version__", "3.16.0")
    for _ in range(2):
        DistributedModel(model).close()
    mentioned = [record.getMessage() for record in caplog.records if "not tested" in record.getMessage()]
    assert len(mentioned) == 1 and mentioned[0].startswith("Keras 3.16.0 is installed")
    keras_seams.check.cache_clear()
