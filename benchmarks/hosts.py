"""Measure milliseconds per step over several hosts of the test network, on links of a given rate.

    python benchmarks/hosts.py [--models mlp cnn] [--hosts 2] [--rate 1gbit] [--rounds 8] [--steps N] [--bf16] [--xla]
                               [--strategy PS] [--peers multi_worker torch] [--json]

The hosts are network namespaces of this machine, and the links between them are limited to the rate. This needs root,
iproute2 and openssh-server. The hosts share the processors of the machine, so arithmetic is slower than on real hosts.

The contenders take turns of a few steps each (`turns.py`). `plain` is plain Keras on one device with the same global
batch. Its time is that of the arithmetic alone on the same processors. `hosts` is this project, with a replica on each
host. The peers train over the same hosts. A ratio compares times of the same round.

The bound of a step is the larger one of the arithmetic alone and of the wire alone. For an all-reduce of the gradients
over n hosts, the wire takes 2 (n - 1) / n times their bytes, divided by the rate. The gradients of embedding tables
travel as rows, so there the arithmetic is the bound.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from subprocess import STDOUT
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from contenders import BFLOAT16, CONTENDERS, OVER_HOSTS, PARAMETER_SERVER, PEERS, PLAIN, ROLES, TORCH, distributed
from figures import Times, noise, quartiles, ratio
from options import JSON, RATE, command, option
from torch_models import MODELS
from turns import Job, Training, in_turns
from workloads import BATCH, STEPS, WORKLOADS

from tests.network.lan import Network, missing

_UNITS = {"mbit": 1e6, "gbit": 1e9}
_PORTS = 23000
"""The first port of the peers; each gets three."""
_BY_ROWS = ("embeddings", "tables")
"""The workloads of which nearly all gradients travel as rows."""


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


def gradient_bytes(workload: str) -> int:
    """Return the bytes of the dense gradients of a model."""
    import keras

    if workload in _BY_ROWS:
        return 0
    variables = WORKLOADS[workload].make(keras).trainable_variables
    return sum(4 * variable.value.shape.num_elements() for variable in variables)


@contextmanager
def network(hosts: int, rate: str) -> Iterator[Any]:
    """A test network whose cables carry a rate; ssh of this process finds its keys."""
    home = os.environ.get("HOME", "")
    with tempfile.TemporaryDirectory() as directory:
        made = Network(hosts, directory)
        os.environ["HOME"] = str(made.home)
        try:
            for host in made.hosts:
                host.shape(rate)
            yield made
        finally:
            os.environ["HOME"] = home
            made.close()


def start(made: Any, contender: str, train: Any, job: Job) -> Training:
    """Start a contender on the hosts of a network; `train` is its function."""
    if contender not in PEERS:
        return Training(contender, train, job)
    job = replace(
        job, spec=None, hosts=tuple(host.address for host in made.hosts),
        port=_PORTS + 3 * PEERS.index(contender), interface=made.hosts[0].interface,
    )  # fmt: skip
    programs = {}
    for role in ROLES[contender]:
        for host in made.hosts if contender == PARAMETER_SERVER else made.hosts[1:]:
            own = replace(job, rank=host.index, interface=host.interface)
            given = {"contender": contender, "role": role, "job": asdict(own)}
            command = [sys.executable, Path(__file__).with_name("follower.py"), json.dumps(given)]
            log = made.directory / f"{contender}-{role}-{host.index}.log"
            with log.open("wb") as file:
                programs[log] = host.run(command, stdout=file, stderr=STDOUT)

    def require() -> None:
        for log, program in programs.items():
            if program.poll():
                raise RuntimeError(f"{contender} failed on a host; {log.name} ends with\n{log.read_text()[-2000:]}")

    def stop() -> None:
        for program in programs.values():
            program.kill()
            program.wait()

    return Training(contender, train, job, require, stop)


def measure(made: Any, workload: str, contenders: Mapping[str, Any], steps: int, rounds: int) -> dict[str, list[float]]:
    """Run the rounds of one model over the hosts; return the milliseconds per step of each contender in each round."""
    job = Job(workload, steps, rounds)
    trainings = [
        start(made, name, train, replace(job, spec=None if name == PLAIN else made.spec()))
        for name, train in contenders.items()
    ]
    return in_turns(trainings, rounds)


def chosen(workload: str, peers: Sequence[str], bf16: bool, **settings: Any) -> dict[str, Any]:
    """The functions of the contenders for a workload."""
    found = {PLAIN: CONTENDERS[PLAIN], OVER_HOSTS: partial(distributed, **settings)}
    if bf16:
        found[BFLOAT16] = CONTENDERS[BFLOAT16]
    found |= {name: CONTENDERS[name] for name in peers if name != TORCH or workload in MODELS}
    return found


def table(results: Mapping[str, Times], hosts: int, rate: str) -> str:
    """Return the results as a table, with a block for each model.

    >>> print(table({"one_layer": {"plain": [1.0], "hosts": [2.0]}}, 2, "1gbit").splitlines()[0].split()[:3])
    ['ms', 'per', 'step']
    """
    lines = [f"{'':<18}{'ms per step':>12}{'quartiles':>18}{'of the bound':>14}{'it / hosts':>12}"]
    for name, times in results.items():
        wire = wire_bound(gradient_bytes(name), hosts, bits_per_second(rate))
        alone = quartiles(times[PLAIN])[1]
        lines += ["", f"{name}: {WORKLOADS[name].title}; arithmetic alone {alone:.1f} ms, wire alone {wire:.1f} ms"]
        for contender in times:
            low, middle, high = quartiles(times[contender])
            bound = max(alone, wire / 2 if contender == BFLOAT16 else wire)
            lines.append(
                f"  {contender:<16}{middle:>12.1f}{f'{low:.1f} .. {high:.1f}':>18}{middle / bound:>14.2f}"
                f"{ratio(times, contender, OVER_HOSTS)[1]:>12.2f}"
            )
        lines.append(f"  noise: the quartiles of plain are {noise(times[PLAIN]):.0%} of its median apart")
    return "\n".join(lines)


def main() -> None:
    """Measure each model and print a block for it."""
    parser = command(__doc__)
    models = ["one_layer", "mlp", "cnn", "embeddings"]
    option(parser, "--models", "some of the models", models, nargs="+", choices=WORKLOADS)
    option(parser, "--hosts", "the number of hosts", 2, type=int)
    option(parser, "--rate", RATE, "1gbit")
    option(parser, "--rounds", "turns of each contender", 8, type=int)
    option(parser, "--steps", "steps of each turn", None, said=STEPS, type=int)
    option(parser, "--strategy", "the name of a builder", None, said="Parallax")
    option(parser, "--bf16", "also with gradients as bfloat16, with error feedback")
    option(parser, "--xla", "compile each replica's compute (jit_compile=True)")
    option(parser, "--peers", "other packages over the same hosts", [], said="none", nargs="*", choices=PEERS)
    option(parser, "--json", JSON)
    given = parser.parse_args()
    if missing():
        parser.exit(1, f"{missing()}.\n")
    results = {}
    with network(given.hosts, given.rate) as made:
        for name in given.models:
            contenders = chosen(name, given.peers, given.bf16, strategy=given.strategy, xla=given.xla)
            steps = given.steps or WORKLOADS[name].steps
            results[name] = measure(made, name, contenders, steps, given.rounds)
            if not given.json:
                print(table({name: results[name]}, given.hosts, given.rate), flush=True)
    if given.json:
        print(json.dumps({"batch": BATCH, "hosts": given.hosts, "rate": given.rate, "times": results}))


if __name__ == "__main__":
    main()
