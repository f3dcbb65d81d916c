"""Part "agents": a cluster of two agents on this machine, whose replicas share the card; one agent is killed."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gpu_check.device import Device, processes_on_cards
from gpu_check.findings import Findings, require

# Two addresses of this machine that every machine has. A resource spec refuses loopback addresses of several nodes, as
# each would mean another machine; it does not know them in this form.
CHIEF, OTHER = "0x7f000001", "0x7f000002"
WAIT = 60


def run(device: Device) -> None:
    """Two machines' worth of replicas in float64, over gRPC in a ring; then the other agent is killed in a step."""
    device.set_up(exact=True)
    import keras

    keras.config.set_floatx("float64")
    os.environ["AUTODIST_SECRET"] = secrets.token_hex(16)
    port, found = _free_port(), Findings("agents")
    other = _start_agent(port)
    started: set[int] = set()
    try:
        for strategy in ("AllReduce", "PS"):
            found.check(f"{strategy} over two agents", lambda each=strategy: _equal(device, port, each, started))
        found.check("a killed agent is named", lambda: _killed(device, port, other, started))
    finally:
        _end(other)
    found.check("nothing is left", lambda: _left(started, device))


def _spec(device: Device, port: int, index: int = 0) -> str:
    cluster = {"worker": [f"{address}:{port}" for address in (CHIEF, OTHER)]}
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})


def _start_agent(port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "autodist_core", "agent", "--wait", str(WAIT), "--linger", str(WAIT)]
    environment = os.environ | {"TF_CONFIG": _spec(Device("CPU"), port, 1)}
    # The program's own output has the findings.
    return subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)


def _end(agent: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(agent.pid, signal.SIGKILL)
    agent.wait(WAIT)


def _front(device: Device, port: int, model: Any, strategy: str) -> Any:
    from autodist_core import ResourceSpec
    from autodist_core.strategy import PS, AllReduce
    from autodist_keras import DistributedModel

    spec = ResourceSpec.from_tf_config(_spec(device, port), gpus=int(device.is_gpu))
    # NCCL would meet the same card twice.
    return DistributedModel(model, spec, PS() if strategy == "PS" else AllReduce(all_reduce_spec="RING"))


def _equal(device: Device, port: int, strategy: str, started: set[int]) -> Mapping[str, Any]:
    import keras

    from gpu_check import trainings
    from tests.support.training import seeded, trained

    case = trainings.of_tests("dense")
    expected = case.train(device)
    model = seeded(case.build)
    with _front(device, port, model, strategy) as front:
        keras.utils.set_random_seed(1)
        history = front.fit(case.x, case.y, batch_size=case.batch, epochs=2, shuffle=False, verbose=0).history
        started |= _descendants()
    return trainings.compared(expected, trained(model, history), trainings.EXACT)


def _killed(device: Device, port: int, other: subprocess.Popen[bytes], started: set[int]) -> Mapping[str, Any]:
    import keras

    from autodist_core.errors import NodeLostError
    from gpu_check import trainings

    case = trainings.of_tests("dense")
    killed = []

    class Kill(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1 and not killed:
                started.update(_descendants())
                os.killpg(other.pid, signal.SIGKILL)
                killed.append(time.monotonic())

    with _front(device, port, case.build(), "AllReduce") as front:
        try:
            front.fit(case.x, case.y, batch_size=2, epochs=10_000, verbose=0, callbacks=[Kill()])
        except NodeLostError as error:
            seconds = time.monotonic() - killed[0]
            return require(OTHER in str(error), f"the error does not name the agent: {error}", {"seconds": seconds})
    raise AssertionError("the training went on without the killed agent")


def _left(started: set[int], device: Device) -> Mapping[str, Any]:
    """The processes that the runs started are gone, on the card too."""
    until = time.monotonic() + 20
    while (alive := {pid for pid in started if _runs(pid)}) and time.monotonic() < until:
        time.sleep(0.2)
    on_card = sorted(started.intersection(processes_on_cards())) if device.is_gpu else []
    return require(
        bool(started) and not alive and not on_card, f"still there: {sorted(alive)}, on the card: {on_card}",
        {"processes": len(started)},
    )


def _descendants() -> set[int]:
    """The processes that this one has started, and those that they have."""
    parents = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        fields = _stat(int(name))
        if fields:
            parents[int(name)] = int(fields[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def _runs(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"])


def _stat(pid: int) -> list[str]:
    """The state of a process, the process that started it, and more; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
