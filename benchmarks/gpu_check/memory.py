"""Part "memory": the most that the allocator of the card has given out, beside plain Keras and what the plan says."""

from collections.abc import Mapping
from typing import Any

from workloads import workload

from gpu_check.device import Device, in_a_process
from gpu_check.findings import Findings, NotRun, require

MOST = 1.05
"""The most that one replica may take of plain Keras's peak."""


def run(device: Device) -> None:
    """Plain Keras and one replica, each in a process of its own."""
    found = Findings("memory")
    names = ("transformer_100m", "resnet50_bfloat16") if device.is_gpu else ("mlp",)
    for name in ("one_layer",) if device.tiny else names:
        found.check(name, lambda name=name: _compared(device, name))


def _compared(device: Device, name: str) -> Mapping[str, Any]:
    plain, one = (in_a_process(peak, device, name, replicas) for replicas in (0, 1))
    if not plain[0]:
        raise NotRun("needs a GPU: TensorFlow does not count the memory of a processor")
    ratio = one[0] / plain[0]
    figures = {"plain MiB": plain[0] / 2**20, "one replica MiB": one[0] / 2**20, "ratio": ratio, "plan": one[1]}
    return require(ratio <= MOST, f"one replica takes {ratio:.2f} of plain Keras's memory", figures)


def peak(device: Device, name: str, replicas: int) -> tuple[int, str]:
    """The allocator's peak in a training, 0 if it is unknown, and the plan's lines on memory."""
    device.set_up()
    import keras
    import tensorflow as tf

    from autodist_keras import DistributedModel

    chosen = workload(name)
    model = chosen.make(keras)
    options = {"steps_per_epoch": 4, "epochs": 2, "verbose": 0}
    said = ""
    if not replicas:
        model.fit(chosen.dataset(), **options)
    else:
        with DistributedModel(model, device.spec(replicas)) as front:
            front.fit(chosen.dataset(), **options)
            said = "; ".join(line.strip() for line in str(front.plan()).splitlines() if "memory" in line)
    try:
        return int(tf.config.experimental.get_memory_info(f"{device.kind}:0")["peak"]), said
    except ValueError:
        return 0, said
