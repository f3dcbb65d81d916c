"""Part "cards": with several cards, NCCL over all of them, and how the examples of a second grow with the cards."""

import time
from collections.abc import Mapping
from typing import Any

from workloads import BATCH, workload

from gpu_check.device import Device, cards, in_a_process
from gpu_check.findings import Findings, NotRun

COUNTS = (1, 2, 4, 8)
STEPS = 20


def run(device: Device) -> None:
    """The numbers first, then the speed: each replica has a batch of its own size, however many there are."""
    there, found = len(cards()) if device.is_gpu else 2, Findings("cards")
    found.check("NCCL over all cards", lambda: in_a_process(equal, device, there))
    name = "one_layer" if device.tiny else "resnet50_bfloat16" if device.is_gpu else "mlp"
    found.check(f"scaling: {name}", lambda: _scaling(device, there, name))


def equal(device: Device, count: int) -> Mapping[str, Any]:
    """One replica for each card equals one device."""
    device.require_gpu("s" if count < 2 else "")
    if count < 2:
        raise NotRun("needs several GPUs")
    device.set_up(exact=True)
    import keras

    from autodist_core.strategy import AllReduce
    from gpu_check import trainings

    keras.config.set_floatx("float64")
    case = trainings.of_tests("dense")
    actual = case.train(device, count, share_memory=False, strategy=AllReduce(all_reduce_spec="NCCL"))
    return trainings.compared(case.train(device), actual, trainings.EXACT)


def _scaling(device: Device, there: int, name: str) -> Mapping[str, Any]:
    if there < 2:
        raise NotRun("needs several GPUs")
    figures: dict[str, Any] = {}
    for count in (each for each in COUNTS if each <= there):
        rate = in_a_process(examples_per_second, device, name, count)
        figures[f"{count}: examples/s"] = rate
        figures[f"{count}: efficiency"] = rate / count / figures["1: examples/s"]
    return figures


def examples_per_second(device: Device, name: str, count: int) -> float:
    """The examples of a second over so many replicas, each with a batch of the workload's size."""
    device.set_up(parts=1 if device.is_gpu else count)
    import keras
    import tensorflow as tf

    from autodist_keras import DistributedModel

    chosen, began = workload(name), []

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            began.append(time.perf_counter())

    model = chosen.make(keras)
    model.jit_compile = device.is_gpu
    data = tf.data.Dataset.from_tensor_slices(chosen.arrays()).cache().repeat().batch(BATCH * count).prefetch(2)
    steps = 2 if device.tiny else STEPS
    with DistributedModel(model, device.spec(count)) as front:
        front.fit(data, steps_per_epoch=steps, epochs=4, verbose=0, callbacks=[Clock()])
    # The first epoch traces and compiles.
    return BATCH * count * steps * 2 / (began[3] - began[1])
