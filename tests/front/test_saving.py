"""What is saved loads in plain Keras and the other way round, optimizer state included."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from tests.support.compare import Trained, assert_equally_trained, assert_same, flat
from tests.support.models import BATCH, BY_NAME, DENSE, ReferenceModel
from tests.support.training import assert_equal_training, compiled, distributed, fit, train_plain, trained


def _fit(front, reference: ReferenceModel) -> dict:
    return fit(front, reference.data().rows(slice(3 * BATCH)), epochs=2)


def _twice(reference: ReferenceModel) -> Trained:
    """Two trainings in a row, without saving in between."""
    return train_plain(reference, lambda front, model: [_fit(front, reference), _fit(front, reference)][1])


@pytest.mark.quick("embedding-PS-front")
@pytest.mark.parametrize("name, builder, saves", [("heads", "AllReduce", "model"), ("embedding", "PS", "front")])
def test_saved_here_continued_in_keras(name: str, builder: str, saves: str, tmp_path: Path):
    """By the wrapper, or by the user's own object."""
    reference, model = BY_NAME[name], compiled(BY_NAME[name])
    with distributed(model, builder) as front:
        _fit(front, reference)
        {"front": front, "model": model}[saves].save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert_equally_trained(trained(model), trained(loaded), tolerance=0.0)
    assert_equally_trained(_twice(reference), trained(loaded, _fit(loaded, reference)))


def test_saved_in_keras_continued_here(tmp_path: Path):
    reference = BY_NAME["embedding"]
    model = compiled(reference)
    _fit(model, reference)
    model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    with distributed(model) as front:
        assert_equally_trained(_twice(reference), trained(model, _fit(front, reference)))


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


def test_weights_files_and_backups_under_another_strategy(tmp_path: Path):
    """Saved by two replicas; continued in plain Keras, and by three replicas with a server, optimizer included."""
    path, backup = tmp_path / "first.weights.h5", keras.callbacks.BackupAndRestore
    with distributed(compiled(DENSE), "AllReduce") as front:
        fit(front, DENSE.data(), epochs=2, callbacks=[backup(tmp_path / "backup", delete_checkpoint=False)])
        front.save_weights(path)
    expected = train_plain(DENSE, lambda front, model: fit(front, DENSE.data(), epochs=4) and None)
    for replicas in (0, 3):
        for way in ("weights", "backup"):
            model = compiled(DENSE)
            model.optimizer.build(model.trainable_variables)
            options = {"epochs": 4, "initial_epoch": 2}
            if way == "weights":
                model.load_weights(path)
            else:
                shutil.copytree(tmp_path / "backup", tmp_path / f"backup {replicas}")
                options = {"epochs": 4, "callbacks": [backup(tmp_path / f"backup {replicas}")]}
            with distributed(model, "PS", replicas=replicas) if replicas else nullcontext(model) as front:
                fit(front, DENSE.data(), **options)
            assert_equally_trained(expected, trained(model))


def test_an_exported_model_predicts_what_the_replicas_predict(tmp_path: Path):
    x = DENSE.data().x
    with distributed(compiled(DENSE), "PS", replicas=3) as front:
        fit(front, DENSE.data(), epochs=1)
        front.export(tmp_path / "exported", verbose=False)
        expected = front.predict(x, verbose=0)
    exported = tf.saved_model.load(tmp_path / "exported")
    served = exported.serve(tf.constant(x)).numpy()
    assert_same({"outputs": expected}, {"outputs": served})


def test_state_as_a_tree_and_what_else_a_trainer_tells():
    """Read within a `fit`; given back, and trained on. A loss without state is the same number."""

    def program(front, model):
        data, trees, printed = DENSE.data(), [], []
        keep = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: trees.append(model.get_state_tree(value_format="numpy_array"))
        )
        first = fit(front, data, callbacks=[keep], epochs=2)
        front.set_state_tree(trees[0])
        second = fit(front, data, epochs=1)
        values = [[variable.value for variable in kind] for kind in (
            model.trainable_variables, model.non_trainable_variables, model.metrics_variables)]
        loss, _ = model.stateless_compute_loss(*values, y=data.y, y_pred=data.y + 0.5)
        assert front.metrics_names == [metric.name for metric in model.metrics]
        assert front.get_compile_config()["optimizer"]["config"]["name"] == model.optimizer.name
        assert front.to_json() == model.to_json() and front.get_layer(index=0) is model.layers[0]
        front.summary(print_fn=printed.append)
        assert "Total params" in printed[0]
        return first, trees, second, loss

    result = assert_equal_training(DENSE, program).result
    assert any("optimizer_variables" in name for name in result)
