"""Each name is renamed in turn, as an upgrade of Keras or TensorFlow would, and the error names it."""

import inspect
import sys

import keras
import pytest

from autodist_core.errors import SeamError
from autodist_core.seams import seam as seams
from autodist_core.seams import table as core_seams
from autodist_keras import DistributedModel
from autodist_keras import seams as keras_seams

pytestmark = pytest.mark.oldest
TABLE = (*keras_seams.TABLE, *core_seams.TABLE)
CHECKED = [seam for seam in TABLE if not seam.at_use]


class Renamed:
    """Hides a name of a class, whichever of its bases defines it."""

    def __get__(self, instance, kind):
        raise AttributeError("renamed")


def problems():
    try:
        seams.examine(TABLE)
    except SeamError as error:
        return error.problems
    return ()


@pytest.mark.parametrize("seam", CHECKED, ids=lambda seam: seam.label)
def test_a_missing_name_is_named(seam, monkeypatch):
    owner = seams.owner(seam.owner)
    with monkeypatch.context() as patches:
        if inspect.isclass(owner):
            patches.setattr(owner, seam.name, Renamed())
        else:
            patches.delattr(owner, seam.name)
        found = next(problem for problem in problems() if seam.rests in problem)
    root = seam.owner.partition(".")[0]
    assert f"has no {seam.label}, on which" in found
    if root in seams.SUPPORTED:
        first, last = (".".join(map(str, version)) for version in seams.SUPPORTED[root])
        assert f" {sys.modules[root].__version__} " in found and found.endswith(f"; supported: {first} to {last}")
    assert not problems()


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
    monkeypatch.setattr("tensorflow.__version__", "2.22.0-rc0")
    for _ in range(2):
        DistributedModel(model).close()
    mentioned = [record.getMessage() for record in caplog.records if "not tested" in record.getMessage()]
    assert [text.split(" is ")[0] for text in mentioned] == ["Keras 3.16.0", "TensorFlow 2.22.0-rc0"]
