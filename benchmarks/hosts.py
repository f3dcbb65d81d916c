"""Measure milliseconds per step over several hosts of the test network, on links of a given rate.

    python benchmarks/hosts.py [--models mlp cnn] [--hosts 2] [--rate 1gbit] [--rounds 8] [--steps N] [--bf16] [--xla]
                               [--strategy PS] [--peers multi_worker torch] [--json]

The hosts are network namespaces of this machine, and the links between them are limited to the rate. This needs root,
iproute2 and openssh-server. The hosts share the processors of the machine, so arithmetic is slower than on real hosts.

The contenders take turns of a few steps each (`turns.py`). `plain` is plain Keras on one device with the same global
batch. Its time is that of the arithmetic alone on the same processors. `hosts` is this project, with a replica on each
host. `hosts_gradients` is the same with `AllReduce(factor_rows=0)`, for models of which factors travel in place of
gradients. The peers train over the same hosts. A ratio compares times of the same round.

The bound of a contender's step is the larger one of the arithmetic alone and of the wire alone: the bytes that its
strategy sends over the busiest link (`bounds.py`), divided by the rate. The peers send the gradients. The rows of
embedding tables do not count, so there the arithmetic is the bound.
"""

import json
import os
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

from bounds import bits_per_second, link_bytes, wire_alone
from contenders import (
    ALL_REDUCE,
    BFLOAT16,
    CONTENDERS,
    GRADIENTS,
    OVER_HOSTS,
    PARAMETER_SERVER,
    PEERS,
    PLAIN,
    ROLES,
    TORCH,
    distributed,
)
from figures import Times, noise, quartiles, ratio
from options import JSON, RATE, command, option
from torch_models import MODELS
from turns import Job, Training, in_turns
from workloads import BATCH, STEPS, WORKLOADS

from tests.network.lan import Network, missing

_PORTS = 23000
"""The first port of the peers; each gets three."""


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


def wires(workload: str, hosts: int, strategy: str | None) -> dict[str, float]:
    """Return the bytes that this project's contenders send over the busiest link in a step.

    >>> wires("one_layer", 2, "PS")
    {'hosts': 680.0, 'hosts_gradients': 680.0, 'hosts_bf16': 340.0}
    """
    from autodist_core.strategy import AllReduce, resolve

    builders = {OVER_HOSTS: resolve(strategy)} | {name: AllReduce(**options) for name, options in ALL_REDUCE.items()}
    return {name: link_bytes(workload, hosts, builder) for name, builder in builders.items()}


def bounds(times: Times, sent: Mapping[str, float], rate: str) -> dict[str, float]:
    """Return the milliseconds that a step of each contender takes at least; `sent` are the bytes of ours.

    >>> bounds({"plain": [2.0], "torch": [5.0], "hosts": [4.0]}, {"hosts_gradients": 5e5, "hosts": 1e5}, "1gbit")
    {'plain': 2.0, 'torch': 4.0, 'hosts': 2.0}
    """
    alone, bits = quartiles(times[PLAIN])[1], bits_per_second(rate)
    least = {name: max(alone, wire_alone(sent.get(name, sent[GRADIENTS]), bits)) for name in times}
    return least | {PLAIN: alone}


def chosen(
    workload: str, peers: Sequence[str], bf16: bool, sent: Mapping[str, float], **settings: Any
) -> dict[str, Any]:
    """The functions of the contenders for a workload; `sent` are the bytes of ours."""
    found = {PLAIN: CONTENDERS[PLAIN], OVER_HOSTS: partial(distributed, **settings)}
    if sent[OVER_HOSTS] < sent[GRADIENTS]:
        found[GRADIENTS] = CONTENDERS[GRADIENTS]
    if bf16:
        found[BFLOAT16] = CONTENDERS[BFLOAT16]
    found |= {name: CONTENDERS[name] for name in peers if name != TORCH or workload in MODELS}
    return found


def table(results: Mapping[str, Times], sent: Mapping[str, Mapping[str, float]], rate: str) -> str:
    """Return the results as a table, with a block for each model; `sent` are the bytes of ours for each model.

    >>> sent = {"hosts": 680.0, "hosts_gradients": 680.0}
    >>> print(table({"one_layer": {"plain": [1.0], "hosts": [2.0]}}, {"one_layer": sent}, "1gbit").splitlines()[2])
    one_layer: one dense layer of 170 parameters, SGD; arithmetic alone 1.0 ms, wire alone 0.0 ms
    """
    lines = [f"{'':<18}{'ms per step':>12}{'quartiles':>18}{'of the bound':>14}{'it / hosts':>12}"]
    for name, times in results.items():
        least, wire = bounds(times, sent[name], rate), wire_alone(sent[name][OVER_HOSTS], bits_per_second(rate))
        title = WORKLOADS[name].title
        lines += ["", f"{name}: {title}; arithmetic alone {least[PLAIN]:.1f} ms, wire alone {wire:.1f} ms"]
        for contender in times:
            low, middle, high = quartiles(times[contender])
            lines.append(
                f"  {contender:<16}{middle:>12.1f}{f'{low:.1f} .. {high:.1f}':>18}{middle / least[contender]:>14.2f}"
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
            sent = wires(name, given.hosts, given.strategy)
            contenders = chosen(name, given.peers, given.bf16, sent, strategy=given.strategy, xla=given.xla)
            steps = given.steps or WORKLOADS[name].steps
            results[name] = measure(made, name, contenders, steps, given.rounds)
            if not given.json:
                print(table({name: results[name]}, {name: sent}, given.rate), flush=True)
    if given.json:
        print(json.dumps({"batch": BATCH, "hosts": given.hosts, "rate": given.rate, "times": results}))


if __name__ == "__main__":
    main()
