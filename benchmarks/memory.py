"""Measure the peak of resident memory of every process of a training, and compare the plan's forecast with it.

    python benchmarks/memory.py [--only forecast contenders] [--models dense cnn ...] [--workload mlp] [--hosts 2 4]
                                [--builders AllReduce PS] [--peers multi_worker torch] [--json]

The part `forecast` trains each of ten models with one replica, in a process of its own, and prints what that takes
above idle, what `plan(x, y)` says, and their ratio. Idle is the resident memory of the same process when it has trained
the model on two examples, without the model's state. The C library gives freed memory back in these processes
(`MALLOC_MMAP_THRESHOLD_`, `MALLOC_ARENA_MAX`), since the forecast does not count what it would keep.

The part `contenders` trains one workload as each contender of the other benchmarks does, on this machine and over hosts
of the test network, and prints the peak of each process that takes more than 200 MiB. The program is the first one of
its host. The floor is what one device needs according to the forecast, without TensorFlow itself.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hosts
from contenders import CONTENDERS, MIRRORED, MULTI_WORKER, ONE, PLAIN, REDUCED, TORCH, TWO, distributed
from memory_models import MODELS
from options import command, option
from torch_models import MODELS as OF_TORCH
from turns import Job, Training
from workloads import BATCH, WORKLOADS

from tests.network.lan import missing

PARTS = ("forecast", "contenders")
GATHERED = "gathered"
BUILDERS = ("AllReduce", "PS", "PartitionedPS", "Parallax", "Sharded", GATHERED)
"""Names of builders, and a name for `Sharded(weights="gathered")`."""
GIVING_BACK = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_ARENA_MAX": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""The variables with which the C library gives freed memory back, and TensorFlow has no pool that keeps it."""
_SMALL = 200
_STEPS = 3


def resident(field: str = "VmHWM", process: int | str = "self") -> float:
    """Return a process's peak of resident memory in MiB, or with VmRSS what is resident now; 0 if it has ended.

    >>> resident() >= resident("VmRSS") > 0
    True
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:")), 0.0)


def measured(name: str) -> tuple[float, float]:
    """Return the MiB that a model takes above idle, and what the plan says. It is measured in this process."""
    from autodist_core import ResourceSpec
    from autodist_keras import DistributedModel

    front = DistributedModel(MODELS[name].make(), ResourceSpec.local(cpus=1))
    batch = MODELS[name].arrays()
    trained(front, MODELS[name].arrays(2))
    idle = resident("VmRSS") - needed(front.plan())
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    trained(front, batch)
    return resident() - idle, needed(front.plan(*batch))


def trained(front: Any, batch: tuple[Any, Any]) -> None:
    """Train a few steps on one batch."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensors(batch).repeat()
    front.fit(data, steps_per_epoch=_STEPS, shuffle=False, verbose=0)


def needed(plan: Any) -> float:
    """The MiB that one device needs according to a plan."""
    return float(max(each.peak for each in plan.table.memory) / 2**20)


def forecasts(models: Sequence[str]) -> Iterator[tuple[str, float, float]]:
    """The measured MiB of each model, and what the plan says."""
    for name in models:
        program = [sys.executable, __file__, "--of", name]
        ended = subprocess.run(program, env=os.environ | GIVING_BACK, stdout=subprocess.PIPE, text=True, check=True)
        yield name, *json.loads(ended.stdout.splitlines()[-1])


def peaks() -> dict[str, list[float]]:
    """The peaks of the processes below this one that are not small, in MiB, for each host; the largest first."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found: dict[str, list[float]] = {}
    for process in parents:
        above = process
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() != process and (size := resident(process=process)) > _SMALL:
            found.setdefault(os.readlink(f"/proc/{process}/ns/net"), []).append(size)
    own = os.readlink("/proc/self/ns/net")
    numbers = {place: f"host {number}" for number, place in enumerate(sorted(found.keys() - {own}), 1)}
    return {numbers.get(place, "program"): sorted(sizes, reverse=True) for place, sizes in found.items()}


def of_training(training: Training) -> dict[str, list[float]]:
    """The peaks of the processes of a training, when its steps have run."""
    try:
        training.wait_until_ready()
        training.turn()
        return peaks()
    finally:
        training.kill()


def contenders(
    workload: str, counts: Sequence[int], builders: Sequence[str], peers: Sequence[str]
) -> Iterator[tuple[str, str, Mapping[str, list[float]]]]:
    """Each contender, where it trains, and the peaks of its processes."""
    from autodist_core.strategy import Sharded

    job = Job(workload, _STEPS, rounds=1)
    for name in (PLAIN, ONE, TWO, REDUCED, MIRRORED):
        yield "one machine", name, of_training(Training(name, CONTENDERS[name], job))
    for count in () if missing() else counts:
        with hosts.network(count, "1gbit") as made:
            spec = replace(job, spec=made.spec())
            for builder in builders:
                strategy = Sharded(weights=GATHERED) if builder == GATHERED else builder
                training = hosts.start(made, builder, partial(distributed, strategy=strategy), spec)
                yield f"{count} hosts", builder, of_training(training)
            for peer in peers:
                if find_spec("torch" if peer == TORCH else "tf_keras") and (peer != TORCH or workload in OF_TORCH):
                    yield f"{count} hosts", peer, of_training(hosts.start(made, peer, CONTENDERS[peer], job))


def floor(workload: str) -> float:
    """The MiB that one device needs for a workload: state, gradients and activations, according to the plan."""
    import keras

    from autodist_core import ResourceSpec
    from autodist_keras import DistributedModel

    chosen = WORKLOADS[workload]
    with DistributedModel(chosen.make(keras), ResourceSpec.local(cpus=1)) as front:
        return needed(front.plan(chosen.dataset(BATCH)))


def row(where: str, name: str, found: Mapping[str, Sequence[float]]) -> str:
    """Return a line of the part `contenders`.

    >>> row("2 hosts", "PS", {"program": [900.4], "host 1": [1200.0, 300.0]})
    '  2 hosts      PS             program 900; host 1 1200 + 300'
    """
    text = "; ".join(f"{place} {' + '.join(f'{size:.0f}' for size in sizes)}" for place, sizes in found.items())
    return f"  {where:<12} {name:<14} {text}"


def main() -> None:
    """Print a line for each model and each contender."""
    os.environ.setdefault("AUTODIST_LOG", "error")
    if sys.argv[1:2] == ["--of"]:
        print(json.dumps(measured(sys.argv[2])))
        return
    parser = command(__doc__)
    option(parser, "--only", "some of the parts", PARTS, nargs="+", choices=PARTS)
    option(parser, "--models", "models of the forecast", list(MODELS), nargs="+", choices=MODELS)
    option(parser, "--workload", "what the contenders train", "mlp", choices=WORKLOADS)
    option(parser, "--hosts", "the numbers of hosts", [2, 4], nargs="*", type=int)
    option(parser, "--builders", "names of builders", BUILDERS, nargs="+", choices=BUILDERS)
    option(parser, "--peers", "other packages over the hosts", [MULTI_WORKER, TORCH], nargs="*")
    option(parser, "--json", "print the peaks as JSON instead of a table")
    given = parser.parse_args()
    result: dict[str, Any] = {"forecast": {}, "contenders": []}
    if "forecast" in given.only:
        for name, peak, said in forecasts(given.models):
            result["forecast"][name] = peak, said
            if not given.json:
                print(f"  {name:<12} measured {peak:6.0f} MiB   forecast {said:6.0f}   {said / peak:.2f}", flush=True)
    if "contenders" in given.only:
        result["floor"] = floor(given.workload)
        if not given.json:
            print(f"{given.workload}: MiB, TensorFlow itself included; floor {result['floor']:.0f}", flush=True)
        for each in contenders(given.workload, given.hosts, given.builders, given.peers):
            result["contenders"].append(each)
            if not given.json:
                print(row(*each), flush=True)
    if given.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
