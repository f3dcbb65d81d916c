"""Part "rest": NCCL with one rank, `explain` and the timeline on a card, and `autodist doctor`."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workloads import workload

from gpu_check.device import Device
from gpu_check.findings import Findings, require


def run(device: Device) -> None:
    """What is left: each check is short."""
    device.set_up()
    found = Findings("rest")
    name = "one_layer" if device.tiny else "mlp"
    found.check("NCCL with one rank", lambda: _nccl(device))
    found.check("explain", lambda: _explained(device, name))
    found.check("timeline", lambda: _timeline(device, name))
    found.check("doctor", lambda: _doctor(device))


def _nccl(device: Device) -> Mapping[str, Any]:
    """A sum over a group of one: the library is opened, and makes a communicator."""
    device.require_gpu()
    import numpy as np
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        with tf.device("/GPU:0"):
            total = tf.raw_ops.CollectiveReduceV2(
                input=tf.ones((1000, 100)), group_size=1, group_key=1, instance_key=1, ordering_token=[],
                merge_op="Add", final_op="Id", communication_hint="nccl", timeout_seconds=30,
            )  # fmt: skip
        options = tf.compat.v1.RunOptions(timeout_in_ms=40_000)
        options.experimental.collective_graph_key = 1
        with tf.compat.v1.Session(graph=graph) as session:
            value = session.run(total, options=options)
    return require(bool(np.all(value == 1)), "another sum", {"numbers": value.size})


def _front(device: Device, name: str) -> Any:
    import keras

    from autodist_keras import DistributedModel

    return DistributedModel(workload(name).make(keras), device.spec(1))


def _explained(device: Device, name: str) -> Mapping[str, Any]:
    """The parts of a step. On a card, they are times of kernels: not much shorter than the profile's."""
    from gpu_check.copies import profile_of

    x, y = workload(name).arrays()
    with _front(device, name) as front:
        report = front.explain(list(x) if isinstance(x, tuple) else x, y, batch_size=128, steps=5)
    (parts,) = report.table.parts.values()
    figures = {f"{part} ms": seconds * 1e3 for part, seconds in parts.items()}
    computed = figures["compute ms"] + figures["update ms"]
    busy = profile_of(device, name, 1).busy
    return require(computed > 0.5 * busy, f"kernels ran for {busy:.2f} ms", {**figures, "profiled busy ms": busy})


def _timeline(device: Device, name: str) -> Mapping[str, Any]:
    from autodist_keras.callbacks import Timeline

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.json"
        with _front(device, name) as front:
            front.fit(workload(name).dataset(), steps_per_epoch=20, verbose=0, callbacks=[Timeline(path)])
        events = json.loads(path.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    here = [event for event in events if device.kind in names[event["pid"]] and event.get("dur", 0) > 0]
    said = f"no operation on {device.kind} among {sorted(names.values())}"
    return require(bool(here), said, {"operations": len(here)})


def _doctor(device: Device) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "spec.yml").write_text(json.dumps(device.spec(1)))  # JSON is YAML
        command = [sys.executable, "-m", "autodist_core", "doctor", f"{folder}/spec.yml", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    (node,) = json.loads(done.stdout)["nodes"]
    gpus = len(node["description"]["gpus"])
    return require(done.returncode == 0 and bool(gpus) == device.is_gpu, done.stdout[-1500:], {"GPUs": gpus})
