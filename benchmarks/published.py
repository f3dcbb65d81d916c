"""Predict steps of published clusters, beside what others have measured there.

    python benchmarks/published.py

Nothing runs but the capture of each model's step. One GPU's rate is what the source says of one GPU, and the network is
the one that the source names, so what is predicted is the scaling efficiency: how much of the rate of that many GPUs
alone is left. Sources, with batches of 64 images for each GPU:

- Horovod's page on benchmarks, 512 GPUs: 128 servers with 4 Pascal GPUs each, 25 Gbit/s; its earlier page, 32 servers.
- TensorFlow's guide to benchmarks of May 2017: one P100, and 8 hosts p2.8xlarge with 8 GK210 (K80) each, 10 Gbit/s.

A second table compares strategies where nothing was published. Horovod's page does not name its GPUs' rates: those of
one P100 are taken, and for ResNet-101 a rate between ResNet-50's and ResNet-152's, by their operations.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from options import command

P100 = {"InceptionV3": 142.0, "ResNet50": 219.0, "ResNet101": 131.0, "ResNet152": 91.8, "VGG16": 154.0}
K80 = {"InceptionV3": 29.7, "ResNet50": 52.4, "ResNet152": 19.4}
"""Images in a second of one GPU."""


@dataclass(frozen=True)
class Measured:
    """A published figure.

    >>> Measured("VGG16", 128, 4, 25, P100["VGG16"], 0.68, "AllReduce").gpus
    512
    """

    model: str
    machines: int
    each: int
    """GPUs of each machine."""
    gbit: float
    alone: float
    """Images in a second of one GPU."""
    efficiency: float
    strategy: str
    each_gpu: int = 64
    """Examples of each GPU."""

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return self.machines * self.each


PROCESSORS = 16
"""The processors of each machine. No source says how many there were."""
COMPARED = "PS", "PSLoadBalancing", "PartitionedPS", "AllReduce", "Parallax"
BERT = 5e12 / (6 * 128 * 302e6)
"""Sequences of 128 words in a second: half of a P100's 10 Tflop/s in float32, 6 operations for a parameter and word."""
CHOICES = tuple(
    Measured(name, 16, 1, gbit, rate, 0.0, "", batch) for name, rate, batch in
    (("VGG16", P100["VGG16"], 64), ("ResNet101", P100["ResNet101"], 64), ("BERT-large", BERT, 8)) for gbit in (25, 100)
)
PUBLISHED = (
    *(Measured(name, 128, 4, 25, P100[name], found, "AllReduce")
      for name, found in (("InceptionV3", 0.90), ("ResNet101", 0.90), ("VGG16", 0.68))),
    Measured("VGG16", 32, 4, 25, P100["VGG16"], 0.79, "AllReduce"),
    *(Measured(name, 8, 8, 10, K80[name], images / 64 / K80[name], "PSLoadBalancing")
      for name, images in (("InceptionV3", 1783), ("ResNet50", 2744), ("ResNet152", 981))),
)  # fmt: skip


@cache
def captured(name: str) -> Any:
    """The captured step of a model of Keras's applications."""
    import keras
    import tensorflow as tf

    from autodist_keras.capture.tracing import trace_step

    size = 299 if name == "InceptionV3" else 224
    model = getattr(keras.applications, name)(weights=None)
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    batch = tf.zeros((2, size, size, 3)), tf.zeros((2,), tf.int64)
    specs = [tf.TensorSpec((None, *each.shape[1:]), each.dtype) for each in batch]
    return trace_step(model, model.train_step, batch, specs, False).item


def bert_large() -> Any:
    """The variables of BERT-large: its table of words, and the kernels of 24 blocks."""
    from autodist_core import GraphItem, Variable

    shapes = {"words": (30522, 1024)}
    for block in range(24):
        shapes |= {f"block{block}/{name}": (1024, 1024) for name in ("query", "key", "value", "output")}
        shapes |= {f"block{block}/up": (1024, 4096), f"block{block}/down": (4096, 1024)}
    made = (Variable(name, shape, "float32", is_sparse=name == "words") for name, shape in shapes.items())
    return GraphItem(tuple(made))


def trial(case: Measured) -> Any:
    """What predicts strategies for a case."""
    from autodist_core import ResourceSpec
    from autodist_core.auto.choosing import Trial
    from autodist_core.auto.of_step import profile_of
    from autodist_core.auto.profiles import GPU_UPDATE, ClusterProfile, ModelProfile

    item = bert_large() if case.model == "BERT-large" else captured(case.model)
    spec = ResourceSpec({"nodes": [
        {"address": f"10.0.{n // 250}.{n % 250 + 1}", "chief": n == 0, "gpus": list(range(case.each)),
         "network_bandwidth": case.gbit} for n in range(case.machines)
    ]})  # fmt: skip
    examples = case.each_gpu * case.gpus
    model = profile_of(item, spec, examples) if item.gradients else ModelProfile.assumed(item)
    cluster = ClusterProfile.assumed(spec).timed(model.operations * case.alone, GPU_UPDATE, on_gpus=True)
    machines = tuple(replace(each, processors=PROCESSORS) for each in cluster.machines)
    return Trial.of(item, spec, examples, model, replace(cluster, machines=machines))


def predicted(case: Measured, strategy: str) -> float:
    """The predicted scaling efficiency of a strategy."""
    from autodist_core.strategy import BUILDERS

    found = trial(case)
    step = found.candidate(strategy, BUILDERS[strategy]().build(found.item, found.spec)).prediction.step
    return case.each_gpu / case.alone / step


def rows() -> Iterator[str]:
    """The table in Markdown, line by line."""
    yield "| model | machines x GPUs, Gbit/s | strategy | published | predicted |"
    yield "|---|---|---|---|---|"
    for case in PUBLISHED:
        cluster = f"{case.machines} x {case.each}, {case.gbit:g}"
        found = f"{case.efficiency:.0%} | {predicted(case, case.strategy):.0%}"
        yield f"| {case.model} | {cluster} | {case.strategy} | {found} |"
    yield ""
    yield f"| model, 16 machines with a P100 | Gbit/s | {' | '.join(COMPARED)} |"
    yield f"|---|---|{'---|' * len(COMPARED)}"
    for case in CHOICES:
        cells = " | ".join(f"{predicted(case, name):.0%}" for name in COMPARED)
        yield f"| {case.model} | {case.gbit:g} | {cells} |"


def main() -> None:
    """Print the table."""
    command(__doc__).parse_args()
    for row in rows():
        print(row, flush=True)


if __name__ == "__main__":
    main()
