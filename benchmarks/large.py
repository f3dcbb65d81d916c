"""Train models that are larger than what each host may take, and measure what their sharded state takes and costs.

    python benchmarks/large.py [--only formula limit table time] [--hosts 2 4 8] [--rates 1gbit 40gbit] [--limit 2.5]
                               [--share 3/5] [--layers 32] [--rounds 6] [--json]

The hosts are those of the test network, as in `hosts.py`. They share the processors of this machine.

The part `formula` trains 403 MB of weights in six dense layers with Adam under `Sharded(weights="gathered")` on each
number of hosts. It prints the peak of each agent above that of an agent that trains a tiny model, beside the formula:
16 bytes for each parameter, divided by the number of hosts. What comes on top is the weights of two layers, in parts
and joined, while one is used and the next one is on its way, and what the messages take.

The part `limit` trains dense layers of 4096 with Adam over four hosts, each of which may take `--limit` GiB, as a
control group says. The state of 32 layers is 6.4 GB. On the program's host, the program and its agent have the limit
together, and own `--share` times what another host owns. TensorFlow and the C library keep little (`KEEP_LITTLE`).
`AllReduce` under the same limit, and one host alone, must end with the error of the memory's forecast.

The part `table` trains, saves, loads and evaluates a table of 8 GiB over four hosts, in a program that may take
1.5 GiB. It needs 17 GB on the disk.

The part `time` compares a step of the workload `mlp` with that of `AllReduce(factor_rows=0)`, in turns.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hosts
from contenders import CONTENDERS, GRADIENTS, distributed
from figures import ratio
from memory import GATHERED, peaks, resident
from options import JSON, command, option
from turns import Job, Training, Turns

from tests.network.lan import missing
from tests.network.namespaces import children

PARTS = ("formula", "limit", "table", "time")
RATES = ["1gbit", "40gbit"]
WIDTH = 4096
SHARE = Fraction(3, 5)
KEEP_LITTLE = {"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1", "MALLOC_MMAP_THRESHOLD_": "4194304"}
_GROUPS = (("memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"), ("", "memory.max", "memory.peak"))
"""A controller of control groups, its limit, and the most that was used: of the first version, and of the second."""
_ROWS, _COLUMNS = 1 << 24, 128
_TABLE_LIMIT = 1.5
_SECONDS = 1800.0


class Group:
    """A control group that may take some GiB."""

    def __init__(self, name: str, limit: float) -> None:
        for controller, most, self._used in _GROUPS:
            self._folder = Path("/sys/fs/cgroup", controller, f"autodist-{os.getpid()}-{name}")
            if (self._folder.parent / "cgroup.procs").is_file() and (controller or _is_second()):
                self._folder.mkdir()
                (self._folder / most).write_text(str(int(limit * 2**30)))
                return
        raise OSError("the system has no control groups for memory")

    def take(self, process: int) -> None:
        """Put a process into the group, and what it will start."""
        (self._folder / "cgroup.procs").write_text(str(process))

    def python_outside(self, folder: str) -> str:
        """A program that runs Python outside of such groups."""
        program, procs = Path(folder, "python"), self._folder.parent / "cgroup.procs"
        program.write_text(f'#!/bin/sh\necho $$ > {procs}\nexec {sys.executable} "$@"\n')
        program.chmod(0o755)
        return str(program)

    @property
    def used(self) -> float:
        """The most that was used, in MiB, with the pages of files."""
        return int((self._folder / self._used).read_text()) / 2**20

    def close(self) -> None:
        """Remove this group, and those of programs that have ended."""
        for folder in self._folder.parent.glob("autodist-*"):
            with suppress(OSError):  # its processes have not ended
                folder.rmdir()


def _is_second() -> bool:
    return "memory" in Path("/sys/fs/cgroup/cgroup.subtree_control").read_text().split()


@contextmanager
def limited(made: Any, limit: float) -> Iterator[list[Group]]:
    """A control group for each host of a network; that of this one is for a program and its agent."""
    groups = [Group(f"host{host.index}", limit) for host in made.hosts]
    try:
        for group, host in zip(groups[1:], made.hosts[1:], strict=True):
            for process in children(host.listener.pid):  # the sshd, and what it will start
                group.take(process)
        yield groups
    finally:
        for group in groups:
            group.close()


def dense(
    job: Job, turns: Turns, layers: int, width: int = WIDTH, group: Group | None = None, strategy: Any = None
) -> None:
    """Train dense layers that are made without values, in a group if one is given."""
    if group:
        group.take(os.getpid())
    import keras
    import numpy as np

    from autodist_keras import DistributedModel, without_values

    keras.utils.set_random_seed(0)
    with without_values():
        model = keras.Sequential([keras.Input((width,)), *[keras.layers.Dense(width, "relu") for _ in range(layers)]])
    model.compile(keras.optimizers.Adam(1e-5), "mse")
    x = np.random.default_rng(0).random((16 * job.steps, width), "float32")
    with DistributedModel(model, job.spec, strategy) as front:
        front.fit(
            x, x, batch_size=16, epochs=job.epochs, verbose=0, shuffle=False, callbacks=[turns.callback(keras)],
        )  # fmt: skip


def table(job: Job, turns: Turns, folder: str) -> None:
    """Train a table with SGD, save it, load it and evaluate it. The limit is not that of this machine's agent."""
    group = Group("table", _TABLE_LIMIT)
    group.take(os.getpid())
    sys.executable = group.python_outside(folder)
    import keras
    import numpy as np

    from autodist_core.strategy import Sharded
    from autodist_keras import DistributedModel, without_values

    keras.utils.set_random_seed(0)
    with without_values():
        model = keras.Sequential([
            keras.Input((8,), dtype="int32"), keras.layers.Embedding(_ROWS, _COLUMNS), keras.layers.Flatten(),
            keras.layers.Dense(1),
        ])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.random.default_rng(0).integers(_ROWS, size=(256, 8)).astype("int32")
    y = np.ones((256, 1), "float32")
    with DistributedModel(model, job.spec, Sharded(weights=GATHERED)) as front:
        front.fit(x, y, batch_size=64, epochs=2, verbose=0)
        path, before = str(Path(folder, "table.weights.h5")), front.evaluate(x, y, verbose=0)
        front.save_weights(path)
        front.load_weights(path)
        after = front.evaluate(x, y, verbose=0)
        if before != after:
            raise AssertionError(f"the loss was {before} before the file was written, and {after} when it was read")
    turns.send(resident())


def agents(made: Any, job: Job, **settings: Any) -> dict[str, float]:
    """The peak of the agent of each host but this one when a few steps have run, in MiB."""
    training = Training("large", partial(dense, **settings), replace(job, spec=made.spec()))
    try:
        training.wait_until_ready()
        training.turn()
        return {place: sizes[0] for place, sizes in sorted(peaks().items()) if place != "program"}
    finally:
        training.kill()


def formulas(counts: Sequence[int], job: Job) -> Iterator[tuple[int, float, dict[str, float]]]:
    """For each number of hosts the formula, and the MiB of each agent above idle."""
    from autodist_core.strategy import Sharded

    for count in counts:
        with hosts.network(count, "40gbit") as made:
            idle = agents(made, job, layers=1, width=8, strategy=Sharded(weights=GATHERED))
            taken = agents(made, job, layers=6, strategy=Sharded(weights=GATHERED))
        yield count, 6 * 16 * WIDTH**2 / count / 2**20, {place: taken[place] - idle[place] for place in taken}


def outcome(training: Training) -> str:
    """What becomes of a training: its last turn's milliseconds, or the last line of its error."""
    try:
        training.wait_until_ready()
        return f"trains, {training.turn():.0f} ms per step"
    except RuntimeError as error:
        lines = [line for line in str(error).splitlines() if line.startswith("autodist_core.errors")]
        return lines[-1] if lines else str(error).splitlines()[-1]
    finally:
        training.kill()


def limits(limit: float, layers: int, share: Fraction, job: Job) -> Iterator[tuple[str, str, list[float]]]:
    """What becomes of the model on four hosts of which each may take some GiB, and on one; the MiB of each group."""
    from autodist_core.strategy import Sharded

    with hosts.network(4, "10gbit") as made:
        shares = {host.address: share.denominator for host in made.hosts} | {made.hosts[0].address: share.numerator}
        job = replace(job, spec=made.spec(shared_envs=made.spec()["ssh"]["shared_envs"] | KEEP_LITTLE))
        for name, strategy in ((GATHERED, Sharded(weights=GATHERED, shares=shares)), ("AllReduce", "AllReduce")):
            with limited(made, limit) as groups:
                train = partial(dense, layers=layers, strategy=strategy, group=groups[0])
                found = outcome(Training(name, train, job, seconds=_SECONDS))
                yield f"{name}, 4 hosts", found, [group.used for group in groups]
                for host in made.hosts[1:]:  # what is still in the groups would keep them
                    host.power_off()
                    host.power_on()
                made.learn()
    group = Group("program", limit)
    train = partial(dense, layers=layers, group=group)
    yield "one host", outcome(Training("one", train, replace(job, spec=None))), [group.used]
    group.close()


def of_table() -> float:
    """The peak of the program that trains the table, in MiB; an error if it fails."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, hosts.network(4, "10gbit") as made:
        training = Training("table", partial(table, folder=folder), Job("", 1, 1, made.spec()), seconds=_SECONDS)
        peak = training.wait_until_ready()
        training.end()
        return peak


def times(rate: str, counts: Sequence[int], rounds: int) -> Iterator[tuple[int, Mapping[str, list[float]]]]:
    """For each number of hosts the milliseconds per step of each contender in each round."""
    from autodist_core.strategy import Sharded

    trains = {GRADIENTS: CONTENDERS[GRADIENTS], GATHERED: partial(distributed, strategy=Sharded(weights=GATHERED))}
    for count in counts:
        with hosts.network(count, rate) as made:
            yield count, hosts.measure(made, "mlp", trains, 4, rounds)


def measured(
    only: Sequence[str], counts: Sequence[int], rates: Sequence[str] = RATES, rounds: int = 6, limit: float = 2.5,
    layers: int = 32, share: Fraction = SHARE,
) -> Iterator[tuple[str, Any, str]]:
    """For each run its part, what was found, and a line that says it."""
    job = Job("", steps=2, rounds=1)
    if "formula" in only:
        for count, formula, found in formulas(counts, job):
            text = "; ".join(f"{place} {size:.0f}" for place, size in found.items())
            yield "formula", (count, formula, found), f"{count} hosts: {formula:.0f} MiB; above idle {text}"
    if "limit" in only:
        with patch.dict(os.environ, KEEP_LITTLE):  # for the program, and for the agent that it starts
            for name, ended, used in limits(limit, layers, share, job):
                text = f"groups took {', '.join(f'{size:.0f}' for size in used)} MiB"
                yield "limit", (name, ended, used), f"{name}: {ended}; {text}"
    if "table" in only:
        peak = of_table()
        yield "table", peak, f"the program took {peak:.0f} MiB, its pages of files included"
    for rate in rates if "time" in only else ():
        for count, times_of in times(rate, counts, rounds):
            low, middle, high = ratio(times_of, GATHERED, GRADIENTS)
            text = f"{count} hosts, {rate}: gathered / AllReduce(factor_rows=0) {middle:.2f} ({low:.2f} .. {high:.2f})"
            yield "time", (count, rate, times_of), text


def main() -> None:
    """Print a line for each run."""
    os.environ.setdefault("AUTODIST_LOG", "error")
    parser = command(__doc__)
    option(parser, "--only", "some of the parts", PARTS, nargs="+", choices=PARTS)
    option(parser, "--hosts", "the numbers of hosts of the formula and of the time", [2, 4, 8], nargs="+", type=int)
    option(parser, "--rates", "what each cable carries each way while time is measured", RATES, nargs="+")
    option(parser, "--limit", "the GiB that each host may take", 2.5, type=float)
    option(parser, "--share", "what the program's host owns in proportion to another", SHARE, type=Fraction)
    option(parser, "--layers", "dense layers of 4096 under the limit", 32, type=int)
    option(parser, "--rounds", "turns of each contender", 6, type=int)
    option(parser, "--json", JSON)
    given = parser.parse_args()
    if missing():
        parser.exit(1, f"{missing()}.\n")
    result = dict[str, Any]()
    for part, found, text in measured(
        given.only, given.hosts, given.rates, given.rounds, given.limit, given.layers, given.share
    ):  # fmt: skip
        result.setdefault(part, []).append(found)
        if not given.json:
            print(f"  {part:<8} {text}", flush=True)
    if given.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
