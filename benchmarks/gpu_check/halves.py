"""Part "halves": two replicas on two parts of one card equal one device, and add numbers in one order each time."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from gpu_check.device import Device
from gpu_check.findings import Findings, require

MORE = ("tables, Adam", "attention", "RNN")
COARSE = {"PowerSGDCompressor": 2.0}
"""Compressors that may change the weights by more than a tenth, and by how much."""


def run(device: Device) -> None:
    """Every strategy in float64; compressors; the note on NCCL."""
    device.set_up(parts=2, share=0.2, exact=True)
    import keras

    from autodist_core.strategy import PS, AllReduce, Parallax, PartitionedPS, Sharded
    from autodist_core.strategy.strategy import COMPRESSORS
    from gpu_check import trainings

    keras.config.set_floatx("float64")
    found = Findings("halves")
    cases = trainings.all_cases(device.tiny)
    plain: dict[str, Any] = {}

    def equal(name: str, **settings: Any) -> Mapping[str, Any]:
        case = cases[name]()
        if case.mixes:
            raise AssertionError("its batch statistics are each replica's own: no case for two replicas")
        plain[name] = plain.get(name) or case.train(device)
        return trainings.compared(plain[name], case.train(device, 2, share_memory=False, **settings), trainings.EXACT)

    builders = {
        "AllReduce": AllReduce, "PS on the CPU": PS, "PartitionedPS": PartitionedPS, "Parallax": Parallax,
        "Sharded, on the card": Sharded, "Sharded, gathered": partial(Sharded, weights="gathered"),
    }  # fmt: skip
    for strategy, builder in builders.items():
        for name in ("dense", *(MORE[:0] if device.tiny else MORE if strategy == "Parallax" else MORE[:1])):
            found.check(f"{strategy}: {name}", lambda name=name, builder=builder: equal(name, strategy=builder()))
    found.check("sums in one order", lambda: _repeats(device))
    found.check("NCCL on one card", lambda: _ring(device))
    lossy = [name for name in COMPRESSORS if name != "NoneCompressor"]
    for compressor in lossy[:1] if device.tiny else lossy:
        found.check(compressor, lambda compressor=compressor: _lossy(device, compressor))


def _repeats(device: Device) -> Mapping[str, Any]:
    from gpu_check import trainings

    case = trainings.of_tests("dense")
    return trainings.same_bits(*(case.train(device, 2, share_memory=False, strategy="AllReduce") for _ in range(2)))


def _lossy(device: Device, compressor: str) -> Mapping[str, Any]:
    """What a compressor loses changes the weights a little: more than rounding, and less than a tenth."""
    from autodist_core.strategy import AllReduce
    from gpu_check import trainings

    case = trainings.of_tests("dense", "sgd")
    lossy = case.train(device, 2, share_memory=False, strategy=AllReduce(compressor=compressor))
    figures = trainings.compared(case.train(device), lossy, COARSE.get(compressor, 0.1))
    return require(figures["error"] > trainings.EXACT, "nothing was compressed", figures)


def _ring(device: Device) -> Mapping[str, Any]:
    """NCCL refuses two ranks on one card: the plan says that the ring of TensorFlow takes its place."""
    from autodist_core.strategy import AllReduce
    from autodist_keras import DistributedModel
    from gpu_check import trainings

    device.require_gpu()
    case = trainings.of_tests("dense")
    plan = str(DistributedModel(case.build(), device.spec(2), AllReduce(all_reduce_spec="NCCL")).plan(case.x, case.y))
    return require("NCCL takes each card once only" in plan and "spec=RING" in plan, plan, {"plan": "spec=RING"})
