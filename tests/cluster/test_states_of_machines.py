"""`Resume` where the machines see its folder: they write what they have of large variables themselves."""

import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import NodeLostError
from autodist_core.runtime import written_parts
from autodist_core.strategy import PartitionedPS, Sharded
from autodist_core.training import TrainingState
from autodist_keras import DistributedModel
from autodist_keras.callbacks import Resume
from tests.cluster import hurting
from tests.cluster.over_hosts import HERE, nothing_left
from tests.support.compare import assert_same, state_in_order
from tests.support.ended import kill, killed

pytestmark = [pytest.mark.usefixtures("float64", "known_hosts")]

WIDTH = 400
X = np.random.default_rng(5).normal(size=(16, WIDTH))


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """A folder that all hosts see."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def network(make_network, shared):
    return make_network(3, shared=(shared,))


def made() -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(WIDTH, "tanh"), keras.layers.Dense(WIDTH)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    model.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
    return model


def train(spec, strategy, folder: Path, *callbacks) -> keras.Model:
    model = made()
    with DistributedModel(model, spec, strategy) as dm:
        states = Resume(folder, every=2, keep=2)
        dm.fit(X, X, batch_size=4, epochs=2, verbose=0, callbacks=[states, *callbacks])
    return model


def alone() -> keras.Model:
    model = made()
    model.fit(X, X, batch_size=4, epochs=2, verbose=0)
    return model


def left(folder: Path) -> set[str]:
    """The kinds of files in a folder of states."""
    return {re.sub(r"\d+", "N", path.name) for path in folder.iterdir()} - {"lock"}


OF_MACHINES = {"state-N.resume", "state-N.index", "state-N.data-N-of-N"}


@pytest.mark.parametrize("strategy", [Sharded(weights="gathered"), PartitionedPS()], ids=["Sharded", "PartitionedPS"])
def test_another_cluster_goes_on_with_what_machines_have_written(strategy, network, shared):
    folder = shared / type(strategy).__name__
    killed(train, network.pair(), strategy, folder, kill(5))
    assert left(folder) == OF_MACHINES
    newest = sorted(folder.glob("*.resume"))[-1]
    assert newest.stat().st_size < 2.1 * 8 * WIDTH**2, "of two kernels and their slots, at most the kernels"
    written = tf.train.load_checkpoint(str(newest.with_suffix("")))
    assert [WIDTH, WIDTH] in written.get_variable_to_shape_map().values()
    assert_same(*map(state_in_order, (train(HERE, "AllReduce", folder), alone())))
    assert left(folder) == {"state-N.resume"}
    assert nothing_left(network) == []


def test_a_state_of_which_a_part_is_broken_is_left_out(network, shared, caplog):
    folder = shared / "broken"
    killed(train, network.pair(), Sharded(weights="gathered"), folder, kill(5))
    newest = sorted(folder.glob("*.data-*"))[-1]
    with open(newest, "rb+") as file:
        file.truncate(newest.stat().st_size // 2)
    assert_same(*map(state_in_order, (train(HERE, "AllReduce", folder), alone())))
    assert f"{newest.name.partition('.')[0]}.resume is not complete" in caplog.text


def test_the_program_writes_what_machines_cannot_write(network, shared, caplog):
    """One that does not see the folder, and one that may only read it."""
    folder = shared / "read"
    folder.mkdir()
    for command in (["mount", "--bind", folder, folder], ["mount", "-o", "remount,ro,bind", folder]):
        assert network.hosts[1].run(command).wait(timeout=20) == 0
    killed(train, network.pair(), Sharded(weights="gathered"), folder, kill(5))
    (said, *_) = [record.getMessage() for record in caplog.records if "could not write" in record.message]
    assert "Read-only file system" in said and "\n" not in said
    assert left(folder) == {"state-N.resume"}
    assert_same(*map(state_in_order, (train(HERE, "AllReduce", folder), alone())))


def test_a_folder_that_is_deleted_ends_no_training(network, shared, caplog):
    folder = shared / "gone"

    def delete(batch, logs):
        shutil.rmtree(folder, ignore_errors=True)

    deleting = keras.callbacks.LambdaCallback(on_train_batch_end=delete)
    found = train(network.pair(), Sharded(weights="gathered"), folder, deleting)
    assert "a state was not saved" in caplog.text
    assert_same(*map(state_in_order, (found, alone())))


def test_a_folder_that_machines_do_not_see(network, tmp_path):
    killed(train, network.pair(), Sharded(weights="gathered"), tmp_path, kill(5))
    assert left(tmp_path) == {"state-N.resume"}
    assert_same(*map(state_in_order, (train(HERE, "AllReduce", tmp_path), alone())))


@pytest.mark.parametrize("looks", [False, True], ids=["at once", "after a look"])
def test_a_state_is_of_its_step_or_is_not_written(looks, network, tmp_path, monkeypatch):
    """A machine is lost when the fourth state is read: the program has the values of an earlier step."""
    monkeypatch.setattr(written_parts, "LARGE_BYTES", 1 << 30)
    model, read, states = made(), TrainingState.values, iter(range(4))

    def values(self, entries, path=""):
        if len(entries) > 1 and next(states) == 3:
            hurting.kill(network.hosts[1])
            model.layers[0].kernel.numpy() if looks else None
        return read(self, entries, path)

    monkeypatch.setattr(TrainingState, "values", values)
    with DistributedModel(model, network.pair(), "PartitionedPS") as dm, pytest.raises(NodeLostError):
        dm.fit(X, X, batch_size=4, epochs=2, verbose=0, callbacks=[Resume(tmp_path, every=1)])
    monkeypatch.undo()
    assert_same(*map(state_in_order, (train(HERE, "AllReduce", tmp_path), alone())))
