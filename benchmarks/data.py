"""Measure what the data of a step costs over hosts: fed each step, kept by the machines, and constant.

    python benchmarks/data.py [--hosts 2] [--rate 1gbit] [--rounds 8] [--ways fed "by file" constant] [--json]

The model is `images` of `workloads.py`: 10 MB for each batch, and next to nothing to compute. The data is 8 batches in
arrays, shuffled in each epoch. The contenders take turns of one epoch (`turns.py`):

- `fed`: each step feeds the rows of each replica (AUTODIST_KEPT_BYTES=0);
- `kept`: the arrays are sent once, and each step feeds the numbers of rows;
- `pipeline`: the data is a `tf.data.Dataset` of the same batches, with `prefetch`, which each machine runs;
- `followed`: the same without known sizes: the chief's program goes through it too, and feeds its own machine;
- `decoded`: the images are JPEG in as many files as there are hosts, and each machine decodes each batch;
- `by file`: the same with `AutoShardPolicy.FILE`, so that each machine decodes the images of its own file;
- `constant`: each replica computes on images that are weights of the model, so that nothing of them travels or is
  gathered. It is the bound, and the table needs it.

All ways with 8 rounds take about a minute and a half over two hosts, on two cores.
"""

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from figures import Times, quartiles, ratio
from hosts import network
from options import JSON, RATE, command, option
from turns import Job, Training, Turns, in_turns
from workloads import BATCH, WORKLOADS

from tests.network.lan import missing

FED, KEPT, PIPELINE, FOLLOWED, CONSTANT = "fed", "kept", "pipeline", "followed", "constant"
DECODED, BY_FILE = "decoded", "by file"
_WAYS = (FED, KEPT, PIPELINE, FOLLOWED, DECODED, BY_FILE, CONSTANT)
_WORKLOAD, _BATCHES = "images", 8


def _on_constant_images(keras: Any, model: Any, images: Any) -> Any:
    """The model behind a layer that returns images, whatever it is given."""

    class Same(keras.layers.Layer):  # type: ignore[misc]
        """Returns the first images, one for each example."""

        def build(self, shape: Any) -> None:
            self.images = self.add_weight(shape=images.shape, trainable=False, initializer="zeros")
            self.images.assign(images)

        def call(self, x: Any) -> Any:
            return self.images[: keras.ops.shape(x)[0]]

    constant = keras.Sequential([keras.Input((1,)), Same(), *model.layers])
    constant.compile(model.optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    return constant


def _dataset(x: Any, y: Any, known: bool) -> Any:
    """The same batches as a dataset: batches are shuffled, and not examples, so that a batch is one piece of memory."""
    import tensorflow as tf

    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=known).cache()
    return batches.shuffle(_BATCHES, seed=0).prefetch(2)


def _written(x: Any, y: Any, files: int) -> list[str]:
    """The images as JPEG in this many files of records, which all hosts see."""
    import tensorflow as tf

    # The hosts of the test network have disks of their own, and see the project.
    folder = tempfile.mkdtemp(prefix=".images-", dir=Path(__file__).parent)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    names = [f"{folder}/{number}.tfrecord" for number in range(files)]
    for number, name in enumerate(names):
        with tf.io.TFRecordWriter(name) as file:
            for image, label in zip(x[number::files], y[number::files], strict=True):
                pixels = tf.io.encode_jpeg(tf.cast(255.0 * image, tf.uint8)).numpy()
                features = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[pixels])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
                }
                file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return names


def _records(x: Any, y: Any, files: int, by_file: bool) -> Any:
    """The images, read from files and decoded: on each machine all of them, or those of its own file."""
    import tensorflow as tf

    policies = tf.data.experimental.AutoShardPolicy
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    shape = x.shape[1:]

    def decoded(record: Any) -> tuple[Any, Any]:
        read = tf.io.parse_single_example(record, features)
        image = tf.ensure_shape(tf.io.decode_jpeg(read["image"], channels=shape[-1]), shape)
        return tf.cast(image, tf.float32) / 255.0, read["label"]

    read = tf.data.Dataset.from_tensor_slices(_written(x, y, files)).interleave(tf.data.TFRecordDataset)
    batches = read.repeat().map(decoded, num_parallel_calls=2).batch(BATCH, drop_remainder=True).prefetch(2)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.FILE if by_file else policies.DATA
    return batches.with_options(options)


def train(job: Job, turns: Turns, way: str) -> None:
    """One training over the hosts, whose data takes one of the ways."""
    import keras
    import numpy as np

    from autodist_keras import DistributedModel

    if way == FED:
        os.environ["AUTODIST_KEPT_BYTES"] = "0"
    keras.utils.set_random_seed(0)
    workload = WORKLOADS[job.workload]
    model, (x, y) = workload.make(keras), workload.arrays()
    if way == CONSTANT and job.spec is not None:
        share = -(-BATCH // len(job.spec["nodes"]))
        model, x = _on_constant_images(keras, model, x[:share]), np.zeros((len(x), 1), "float32")
    with DistributedModel(model, job.spec) as front:
        data: dict[str, Any] = {"x": x, "y": y, "batch_size": BATCH}
        if way in (PIPELINE, FOLLOWED):
            data = {"x": _dataset(x, y, known=way == PIPELINE), "shuffle": False}
        if way in (DECODED, BY_FILE) and job.spec is not None:
            records = _records(x, y, len(job.spec["nodes"]), way == BY_FILE)
            data = {"x": records, "steps_per_epoch": _BATCHES, "shuffle": False}
        front.fit(**data, epochs=job.epochs, callbacks=[turns.callback(keras)], verbose=0)


def measure(made: Any, rounds: int, ways: Sequence[str] = _WAYS) -> Times:
    """Run the rounds over the hosts of a network; return the milliseconds per step of each way in each round."""
    job = Job(_WORKLOAD, _BATCHES, rounds, spec=made.spec())
    return in_turns([Training(way, partial(train, way=way), job) for way in ways], rounds)


def table(times: Times, hosts: int, rate: str) -> str:
    """Return the results as a table.

    >>> print(table({"kept": [2.0], "constant": [1.0]}, 2, "1gbit").splitlines()[-2].split())
    ['kept', '2.0', '2.0', '..', '2.0', '2.00']
    """
    lines = [
        f"{hosts} hosts, {rate}: {WORKLOADS[_WORKLOAD].title}",
        f"{'':<12}{'ms per step':>12}{'quartiles':>18}{'of constant':>14}",
    ]
    for way in times:
        low, middle, high = quartiles(times[way])
        share = ratio(times, way, CONSTANT)[1]
        lines.append(f"  {way:<10}{middle:>12.1f}{f'{low:.1f} .. {high:.1f}':>18}{share:>14.2f}")
    return "\n".join(lines)


def main() -> None:
    """Measure the ways and print a table."""
    parser = command(__doc__)
    option(parser, "--hosts", "the number of hosts", 2, type=int)
    option(parser, "--rate", RATE, "1gbit")
    option(parser, "--rounds", "turns of each way, of 8 steps", 8, type=int)
    ways = " ".join(f'"{way}"' if " " in way else way for way in _WAYS)
    option(parser, "--ways", "some of the ways", _WAYS, said=ways, nargs="+", choices=_WAYS, metavar="WAY")
    option(parser, "--json", JSON)
    given = parser.parse_args()
    if missing():
        parser.exit(1, f"{missing()}.\n")
    with network(given.hosts, given.rate) as made:
        times = measure(made, given.rounds, given.ways)
    if given.json:
        print(json.dumps({"batch": BATCH, "hosts": given.hosts, "rate": given.rate, "times": times}))
    else:
        print(table(times, given.hosts, given.rate))


if __name__ == "__main__":
    main()
