"""What is saved loads in plain Keras and the other way round, optimizer state included."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest

from tests.support.compare import assert_same
from tests.support.distributed import BUILDERS, distributed
from tests.support.models import BY_NAME, ReferenceModel
from tests.support.training import seeded
from tests.support.twins import QUIET, flat, run_plain, state


def _fit(front, reference: ReferenceModel):
    data = reference.data()
    return front.fit(data.x, data.y, sample_weight=data.sample_weight, epochs=2, **QUIET).history


def _twice(reference: ReferenceModel) -> dict:
    """Two trainings in a row, without saving in between."""
    return run_plain(lambda front, model: [_fit(front, reference), _fit(front, reference)][1], reference)


@pytest.mark.every(3)
@pytest.mark.parametrize("builder", ["AllReduce", "PS"])
@pytest.mark.parametrize("name", ["heads", "embedding"])
def test_saved_here_continued_in_keras(name: str, builder: str, tmp_path: Path):
    reference = BY_NAME[name]
    with distributed(seeded(reference.build)) as front:
        front.compile(**reference.compile_arguments("adam"), strategy=BUILDERS[builder]())
        _fit(front, reference)
        front.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    assert_same(_twice(reference), flat({"result": _fit(model, reference), "state": state(model)}))


@pytest.mark.parametrize("name", ["heads", "embedding"])
def test_saved_in_keras_continued_here(name: str, tmp_path: Path):
    reference = BY_NAME[name]
    model = seeded(reference.build)
    model.compile(**reference.compile_arguments("adam"))
    _fit(model, reference)
    model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    with distributed(model) as front:
        assert_same(_twice(reference), flat({"result": _fit(front, reference), "state": state(model)}))


def test_the_users_own_object_saves_too(tmp_path: Path):
    reference = BY_NAME["heads"]
    model = seeded(reference.build)
    with distributed(model) as front:
        front.compile(**reference.compile_arguments("adam"))
        _fit(front, reference)
        model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert_same(flat(state(model)), flat(state(loaded)), tolerance=0.0)


def test_weights_files_in_the_middle_of_a_training(tmp_path: Path):
    """Weights loaded between two trainings bring optimizer state back with them."""
    reference, path = BY_NAME["heads"], tmp_path / "first.weights.h5"
    model = seeded(reference.build)
    with distributed(model) as front:
        front.compile(**reference.compile_arguments("adam"))
        _fit(front, reference)
        front.save_weights(path)
        kept = flat(state(model))
        first = _fit(front, reference)
        front.load_weights(path)
        assert_same(kept, flat(state(model)), tolerance=0.0)
        assert_same(flat(first), flat(_fit(front, reference)), tolerance=0.0)
