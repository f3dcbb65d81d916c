"""A machine that cannot make its batch, or makes another one, is named by the error of the step."""

import re

import keras
import pytest
import tensorflow as tf

from autodist_core.runtime.failed_replicas import UNCHANGED
from autodist_core.strategy import PS
from autodist_keras import DistributedModel
from tests.cluster.data.test_data_pipelines import ON_MACHINES, foreseen
from tests.cluster.over_hosts import LONG_TRAININGS
from tests.support.compare import assert_equally_trained
from tests.support.made_data import learning, made, untuned
from tests.support.training import SEED, seeded, trained

pytestmark = LONG_TRAININGS
FED = "AUTODIST_KEPT_BYTES=0 feeds each batch from your program instead."
BROKEN = f"Each machine runs your dataset itself: its functions and files must work there. {FED}"
OTHER = f"Are the files the same on all machines, and do the dataset's functions give the same results each time? {FED}"


def test_an_error_in_a_dataset_is_raised_and_the_model_is_whole(network):
    """Where only the agents go through the dataset, the step raises it. Afterwards the machines train again."""
    def checked(number):
        with tf.control_dependencies([tf.debugging.Assert(number < 25, ["number 25 is broken"])]):
            return made(number)

    broken = untuned(tf.data.Dataset.range(40).map(checked).batch(5, drop_remainder=True))
    model = seeded(learning)
    with DistributedModel(model, network.pair(1, 2), "AllReduce") as front:
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            front.fit(broken, verbose=0, shuffle=False)
        # Each machine makes the batch, so any of them may be the first that fails, or both may be named.
        named, said = str(raised.value).split(": ", 1)
        assert set(named.split(", ")) <= {host.address for host in network.hosts[:2]}
        machine = "these machines" if "," in named else "this machine"
        assert said == (
            f"the data pipeline of {machine} raised an error: assertion failed: [number 25 is broken]\n{BROKEN}\n"
            f"This happened during training step 6.\n{UNCHANGED}"
        )
        assert ON_MACHINES in str(front.plan())
        assert model.optimizer.iterations.numpy() == 5
        keras.utils.set_random_seed(SEED)
        front.fit(foreseen(), verbose=0, shuffle=False)
        assert ON_MACHINES in str(front.plan())
    plain = seeded(learning)
    plain.fit(broken.take(5), verbose=0, shuffle=False)
    keras.utils.set_random_seed(SEED)
    plain.fit(foreseen(), verbose=0, shuffle=False)
    assert_equally_trained(trained(plain), trained(model))


def lines_of(*paths, known=None):
    """Examples of the numbers in the lines of files. Their number may be known ahead."""
    def parsed(line):
        x = tf.fill((500,), tf.strings.to_number(line, tf.float64) / 100.0)
        return x, x[:1]

    lines = tf.data.Dataset.from_tensor_slices(list(map(str, paths))).flat_map(tf.data.TextLineDataset)
    batches = lines.map(parsed).batch(3, drop_remainder=known is not None)
    return untuned(batches if known is None else batches.apply(tf.data.experimental.assert_cardinality(known)))


def test_the_machine_that_fails_is_named(network, tmp_path):
    """The second host has other files than the chief. Each step that meets this changes nothing."""
    chief, worker = (host.address for host in network.hosts[:2])
    here, more = tmp_path / "numbers", tmp_path / "more"
    here.write_text("\n".join(map(str, range(12))))
    more.write_text("\n".join(map(str, range(6))))
    there = network.hosts[1].file(here)
    there.parent.mkdir(parents=True)
    all_of_it, other, short = list(range(12)), [*range(6), 7, *range(7, 12)], list(range(6))
    another = "the data pipeline of this machine made another batch than {}: the first or the last row differs."
    cases = [
        (other, lines_of(here, known=4), f"{another.format(f'that of {chief}')}\n{OTHER}", 3),
        (other, lines_of(here), f"{another.format('your program')}\n{OTHER}", 3),
        (short, lines_of(here), "the data pipeline of this machine ended before the data of the other machines.\n"
         f"Are the files the same on all machines? {FED}", 3),
        (all_of_it, lines_of(here, more), "the data pipeline of this machine raised an error: "
         f"{more}; No such file or directory\n{BROKEN}", 5),
    ]  # fmt: skip
    model = seeded(learning)
    with DistributedModel(model, network.pair(), PS()) as front:
        for content, dataset, said, step in cases:
            there.write_text("\n".join(map(str, content)))
            before = int(model.optimizer.iterations)
            with pytest.raises(tf.errors.OpError) as raised:
                front.fit(dataset, verbose=0, shuffle=False)
            text, happened = re.split(r"\nThis happened (?:on \S+, )?during training step ", str(raised.value))
            assert text == f"{worker}: {said}"
            assert happened.partition(".")[2] == f"\n{UNCHANGED}"
            assert int(model.optimizer.iterations) == before + step - 1
            assert ON_MACHINES in str(front.plan())
