"""What is saved loads in plain Keras and the other way round, optimizer state included."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest

from tests.support.compare import Trained, assert_equally_trained, assert_same, flat
from tests.support.models import BY_NAME, ReferenceModel
from tests.support.training import compiled, distributed, fit, train_plain, trained


def _fit(front, reference: ReferenceModel) -> dict:
    return fit(front, reference.data(), epochs=2)


def _twice(reference: ReferenceModel) -> Trained:
    """Two trainings in a row, without saving in between."""
    return train_plain(reference, lambda front, model: [_fit(front, reference), _fit(front, reference)][1])


@pytest.mark.quick("heads-AllReduce", "embedding-PS")
@pytest.mark.parametrize("builder", ["AllReduce", "PS"])
@pytest.mark.parametrize("name", ["heads", "embedding"])
def test_saved_here_continued_in_keras(name: str, builder: str, tmp_path: Path):
    reference = BY_NAME[name]
    with distributed(compiled(reference), builder) as front:
        _fit(front, reference)
        front.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    assert_equally_trained(_twice(reference), trained(model, _fit(model, reference)))


@pytest.mark.quick("embedding")
@pytest.mark.parametrize("name", ["heads", "embedding"])
def test_saved_in_keras_continued_here(name: str, tmp_path: Path):
    reference = BY_NAME[name]
    model = compiled(reference)
    _fit(model, reference)
    model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    with distributed(model) as front:
        assert_equally_trained(_twice(reference), trained(model, _fit(front, reference)))


def test_the_users_own_object_saves_too(tmp_path: Path):
    reference = BY_NAME["heads"]
    model = compiled(reference)
    with distributed(model) as front:
        _fit(front, reference)
        model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert_equally_trained(trained(model), trained(loaded), tolerance=0.0)


def test_weights_files_in_the_middle_of_a_training(tmp_path: Path):
    """Weights loaded between two trainings bring optimizer state back with them."""
    reference, path = BY_NAME["heads"], tmp_path / "first.weights.h5"
    model = compiled(reference)
    with distributed(model) as front:
        _fit(front, reference)
        front.save_weights(path)
        kept = trained(model)
        first = _fit(front, reference)
        front.load_weights(path)
        assert_equally_trained(kept, trained(model), tolerance=0.0)
        assert_same(flat(first), flat(_fit(front, reference)), tolerance=0.0)
