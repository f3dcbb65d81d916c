"""Measure how the graph of a step grows with the replicas: nodes, bytes, processor seconds to build and import it.

    python benchmarks/growth.py [--models mlp resnet] [--replicas 2 8 32 64] [--strategies AllReduce PS]
                                [--cpus 1] [--phases] [--profile] [--check 3] [--repeat 1]

No machine is needed. The graph is that of a step over as many hosts as replicas (divided by `--cpus`, the CPU devices
of each host). It is built as `fit` builds it for the usual size of the batch, and imported as the session imports it.
`ratio` is the time of building and importing, and `bytes ratio` the bytes of the graph, divided by those of the first
row of the same model and strategy. `--phases` adds a line with the seconds of each phase, `--profile` the functions in
which most of the time of the last row is spent. `--check 3` ends with 1 if a ratio is larger.
"""

import argparse
import cProfile
import os
import pstats
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf
from options import command, option
from workloads import WORKLOADS

from autodist_core import ResourceSpec, strategy
from autodist_core.kernel import build, place
from autodist_core.kernel.placement.devices import Tasks
from autodist_core.step.graph_item import GraphItem
from autodist_core.strategy import StrategyBuilder
from autodist_core.strategy.compiler import StrategyCompiler
from autodist_keras.capture.tracing import trace_step

BUILDERS = (
    "AllReduce", "PS", "PSLoadBalancing", "Parallax", "PartitionedPS", "UnevenPartitionedPS", "PartitionedAR",
    "RandomAxisPartitionAR",
)
_EACH = 2  # the examples of each replica
_SHOWN = 25  # the functions of a profile


@dataclass
class Growth:
    """What the graph of one step takes.

    >>> growth = Growth()
    >>> with growth.phase("import"):
    ...     pass
    >>> list(growth.seconds), growth.nodes
    (['import'], 0)
    """

    nodes: int = 0
    size: int = 0
    """The bytes of the graph."""
    memory: int = 0
    """The bytes by which the process grew when the graph was imported; less if earlier memory was used again."""
    seconds: dict[str, float] = field(default_factory=dict)
    graph_def: Any = None
    graph: tf.Graph = field(default_factory=tf.Graph)

    @property
    def total(self) -> float:
        """The seconds of all phases."""
        return sum(self.seconds.values())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to a phase."""
        start = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start


def captured(workload: str) -> GraphItem:
    """Return the training step of a workload."""
    chosen = WORKLOADS[workload]
    model = chosen.make(keras)
    model.optimizer.build(model.trainable_variables)
    batch = next(iter(chosen.dataset()))
    specs = [
        tf.TensorSpec((None, *each.shape[1:]), each.dtype) for each in tf.nest.flatten(batch)
    ]
    return trace_step(model, model.train_step, batch, specs, False).item


def measured(item: GraphItem, builder: str | StrategyBuilder, replicas: int, cpus: int) -> Growth:
    """Build and import the graph of a step over so many replicas."""
    # The fewest replicas are on two hosts, so that all rows are steps over several machines.
    cpus = min(cpus, -(-replicas // 2))
    hosts = [f"10.0.{index // 250}.{index % 250 + 1}" for index in range(-(-replicas // cpus))]
    nodes = [{"address": host, "chief": host == hosts[0], "cpus": list(range(cpus))} for host in hosts]
    spec, growth = ResourceSpec({"nodes": nodes}), Growth()
    chosen, item = strategy.resolve(builder), replace(item)  # A step that nobody has examined yet.
    compiled = StrategyCompiler(item, spec).compile(chosen.build(item, spec))
    with growth.phase("place"):
        placement = place(item, compiled, share_memory=False, tasks=Tasks("run", tuple(hosts)))
    with growth.phase("build"):
        growth.graph_def = build(item, placement, sizes=[_EACH] * replicas, examples=_EACH * replicas).graph_def
    before = _resident()
    with growth.phase("import"), growth.graph.as_default():
        tf.graph_util.import_graph_def(growth.graph_def, name="")
    growth.memory = _resident() - before
    growth.nodes, growth.size = len(growth.graph_def.node), growth.graph_def.ByteSize()
    return growth


def _resident() -> int:
    """Return the bytes of memory that this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _compared(item: GraphItem, name: str, builder: str, given: argparse.Namespace) -> float:
    """Print a row for each number of replicas; return the largest ratio."""
    first, largest = None, 0.0
    for replicas in given.replicas:
        found = [measured(item, builder, replicas, given.cpus) for _ in range(given.repeat)]
        growth = min(found, key=lambda each: each.total)
        first = first or growth
        ratios = growth.total / first.total, growth.size / first.size
        largest = max(largest, *ratios)
        print(
            f"{name:10} {builder:22} {replicas:4} {growth.nodes:8,} {growth.size / 1e6:8.2f} "
            f"{growth.total - growth.seconds['import']:8.2f} {growth.seconds['import']:8.2f} "
            f"{ratios[0]:8.1f} {ratios[1]:12.1f} {growth.memory / 1e6:10.1f}", flush=True,
        )
        if given.phases:
            print(" " * 11 + ", ".join(f"{phase} {taken:.2f}" for phase, taken in growth.seconds.items()), flush=True)
    return largest


def _profiled(item: GraphItem, builder: str, given: argparse.Namespace) -> None:
    profile: Any = cProfile.Profile()
    profile.enable()
    measured(item, builder, given.replicas[-1], given.cpus)
    profile.disable()
    pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(_SHOWN)


def main() -> None:
    """Print a row for each model, strategy and number of replicas."""
    parser = command(__doc__)
    option(parser, "--models", "some of the models", ["mlp", "resnet"], nargs="+", choices=WORKLOADS)
    option(parser, "--replicas", "numbers of replicas, a row for each", [2, 8, 32, 64], nargs="+", type=int)
    option(parser, "--strategies", "some of the builders", BUILDERS, nargs="+", choices=BUILDERS)
    option(parser, "--cpus", "CPU devices of each host, each a replica", 1, type=int)
    option(parser, "--phases", "print the seconds of each phase")
    option(parser, "--profile", "profile the last row of each strategy")
    option(parser, "--check", "exit with 1 if a ratio is larger than this", 0.0, said="no check", type=float)
    option(parser, "--repeat", "measure so often, and print the fastest", 1, type=int)
    given = parser.parse_args()
    print(
        f"{'model':10} {'strategy':22} {'of':>4} {'nodes':>8} {'MB':>8} {'build s':>8} {'import s':>8} "
        f"{'ratio':>8} {'bytes ratio':>12} {'import MB':>10}"
    )
    largest = 0.0
    for name in given.models:
        item = captured(name)
        for builder in given.strategies:
            largest = max(largest, _compared(item, name, builder, given))
            if given.profile:
                _profiled(item, builder, given)
    if given.check and largest > given.check:
        parser.exit(1, f"the largest ratio is {largest:.1f}, and {given.check:g} is allowed.\n")


if __name__ == "__main__":
    main()
