"""Measure milliseconds per step over several hosts of the test network, on links of a given rate.

    python benchmarks/hosts.py [--models mlp cnn] [--hosts 2] [--rate 1gbit] [--steps 12] [--bf16] [--xla]
                               [--strategy PS]

The hosts are network namespaces of this machine, and the links between them are limited to the rate. This needs root,
iproute2 and openssh-server. The hosts share the processors of the machine, so arithmetic is slower than on real hosts.

Beside each time stands the bound of the wire: the time that the gradients need to travel at the rate. For an all-reduce
over n hosts it is 2 (n - 1) / n times the bytes of the gradients, divided by the rate.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from workloads import WORKLOADS

from tests.network.lan import Network, missing

_UNITS = {"mbit": 1e6, "gbit": 1e9}


def bits_per_second(rate: str) -> float:
    """Return a rate, written as for `tc`, in bits per second.

    >>> bits_per_second("1gbit")
    1000000000.0
    """
    number, unit = re.fullmatch(r"([0-9.]+)(mbit|gbit)", rate).groups()
    return float(number) * _UNITS[unit]


def wire_bound(size: int, hosts: int, rate: float) -> float:
    """Return the milliseconds that an all-reduce of `size` bytes over the hosts takes at least.

    >>> wire_bound(125_000_000, 2, 1e9)
    1000.0
    """
    return 2 * (hosts - 1) / hosts * 8 * size / rate * 1e3


def measure(spec: dict, workload: str, strategy: object, steps: int, xla: bool) -> tuple[list[float], int]:
    """Return the milliseconds of each step after the first three, and the bytes of the trainable variables."""
    import keras

    from autodist_keras import DistributedModel

    class Clock(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.times: list[float] = []

        def on_train_batch_begin(self, batch, logs=None):
            self.start = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            self.times.append((time.perf_counter() - self.start) * 1e3)

    chosen = WORKLOADS[workload]
    model, clock = chosen.make(), Clock()
    model.jit_compile = xla
    with DistributedModel(model, spec, strategy=strategy) as front:
        front.fit(chosen.dataset(), steps_per_epoch=steps + 3, verbose=0, callbacks=[clock])
    return clock.times[3:], sum(variable.numpy().nbytes for variable in model.trainable_variables)


def main() -> None:
    """Measure each model and print a row for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=["one_layer", "mlp", "cnn", "embeddings"])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--strategy", default=None, help="the name of a builder; the default is Parallax")
    parser.add_argument("--bf16", action="store_true", help="send dense gradients as bfloat16, with error feedback")
    parser.add_argument("--xla", action="store_true", help="compile each replica's compute (jit_compile=True)")
    given = parser.parse_args()
    if missing():
        parser.exit(1, f"{missing()}.\n")
    from autodist_core.strategy import AllReduce

    strategy = AllReduce(compressor="HorovodCompressorEF", wire_dtype="bfloat16") if given.bf16 else given.strategy
    rate = bits_per_second(given.rate)
    with tempfile.TemporaryDirectory() as directory:
        network = Network(given.hosts, directory)
        os.environ["HOME"] = str(network.home)
        try:
            for host in network.hosts:
                host.shape(given.rate)
            print(f"{given.hosts} hosts, {given.rate}, {strategy or 'Parallax'}: ms per step, quartiles, wire bound")
            for name in given.models:
                times, size = measure(network.spec(), name, strategy, given.steps, given.xla)
                low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
                bound = wire_bound(size // 2 if given.bf16 else size, given.hosts, rate)
                print(f"{name:12} {middle:8.1f} ({low:.1f}..{high:.1f})  bound {bound:.1f}", flush=True)
        finally:
            network.close()


if __name__ == "__main__":
    main()
