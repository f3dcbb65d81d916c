"""The example programs with loops of their own print and train what one device does."""

from functools import cache

import keras
import pytest
import tensorflow as tf

from autodist_core import AutoDist, ResourceSpec
from tests.network.lan import ROOT
from tests.support.compare import assert_same
from tests.support.distributed import replicas
from tests.support.programs import module_of

pytestmark = pytest.mark.usefixtures("float64")


def example(name: str):
    return module_of(ROOT / f"examples/{name}.py")


def begun_anew(train, *args):
    """What a function of an example returns, with layers named as in a new process."""
    keras.utils.clear_session(free_memory=False)
    return train(*args)


@cache
def on_one_device(name: str, train: str, front: str, count: int):
    """What a function of an example returns without this package; computed once for all strategies."""
    plain = {"strategy": tf.distribute.get_strategy(), "function": tf.function}[front]
    return begun_anew(getattr(example(name), train), plain, 2, count)


@pytest.mark.quick("PartitionedPS")
@pytest.mark.parametrize("strategy", ["Parallax", "PartitionedPS"])
def test_custom_training(strategy):
    program = example("custom_training")
    with replicas(strategy) as front:
        trained = begun_anew(program.train, front, 2, 200)
    assert_same(on_one_device("custom_training", "train", "strategy", 200), trained)


@pytest.mark.quick("PS-train_classifier", "AllReduce-train_gan")
@pytest.mark.parametrize("loop", ["train_classifier", "train_gan"])
@pytest.mark.parametrize("strategy", ["PS", "AllReduce"])
def test_training_loop(loop, strategy):
    program = example("training_loop")
    train = getattr(program, loop)
    with AutoDist(ResourceSpec.local(cpus=3), strategy, share_memory=False) as autodist:
        trained = begun_anew(train, autodist.function, 2, 72)
    assert_same(on_one_device("training_loop", loop, "function", 72), trained)


def test_a_difference_is_seen():
    program = example("training_loop")
    with AutoDist(ResourceSpec.local(cpus=2), "PS") as autodist:
        ours = begun_anew(program.train_classifier, autodist.function, 1, 40)
    reference = begun_anew(program.train_classifier, tf.function, 1, 72)
    assert program.largest_difference(ours, ours)[0] == 0
    assert program.largest_difference(ours, reference | {"losses of epoch 0": ours["losses of epoch 0"]})[0] > 1e-6
