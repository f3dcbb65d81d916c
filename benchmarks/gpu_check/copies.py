"""Part "copies": what a step copies between host and card, and whether the card or the program waits."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from workloads import BATCH, workload

from gpu_check.device import Device
from gpu_check.findings import Findings, NotRun, require
from gpu_check.profiles import Profile, profiled

STEPS = 8
FREE = 64 << 10
"""The bytes that a step may copy besides the batch: numbers of logs, counts, and the shapes of tensors."""


def run(device: Device) -> None:
    """One profile each of plain Keras, of one replica and of two, for models with little and much arithmetic."""
    device.set_up(parts=2)
    found = Findings("copies")
    for name in ("one_layer",) if device.tiny else ("small_mlp", "mlp", "transformer"):
        plain: list[Profile] = []
        for replicas in (0, 1, 2):
            who = f"{replicas} replica{'' if replicas == 1 else 's'}" if replicas else "plain Keras"
            found.check(
                f"{name}: {who}",
                lambda name=name, replicas=replicas, plain=plain: _copied(device, name, replicas, plain),
            )


def _copied(device: Device, name: str, replicas: int, plain: list[Profile]) -> Mapping[str, Any]:
    profile = profile_of(device, name, replicas)
    plain.append(profile)
    if not device.is_gpu:
        raise NotRun(f"needs a GPU; the profile has {profile.host_events:.0f} events of the processor for each step")
    batch = batch_bytes(name)
    figures = {**asdict(profile), "batch": batch}
    wrong = []
    if profile.to_card > batch * 1.05 + FREE:
        wrong.append(f"{profile.to_card:.0f} bytes go to the card in a step, the batch has {batch}")
    if profile.to_host > FREE:
        wrong.append(f"{profile.to_host:.0f} bytes come back from the card in a step")
    if replicas and profile.waits > plain[0].waits + 0.5:
        wrong.append(f"the program waits {profile.waits:.1f} times in a step, with plain Keras {plain[0].waits:.1f}")
    return require(not wrong and profile.kernels > 0, "; ".join(wrong) or "no kernel ran on the card", figures)


def profile_of(device: Device, name: str, replicas: int) -> Profile:
    """The profile of a workload on so many replicas; 0 is plain Keras."""
    import keras

    from autodist_keras import DistributedModel

    chosen = workload(name)
    keras.utils.set_random_seed(0)
    model = chosen.make(keras)
    if not replicas:
        return profiled(lambda **options: model.fit(chosen.dataset(), **options), STEPS)
    with DistributedModel(model, device.spec(replicas)) as front:
        return profiled(lambda **options: front.fit(chosen.dataset(), **options), STEPS)


def batch_bytes(name: str) -> int:
    """The bytes of one batch of a workload, its labels included.

    >>> batch_bytes("one_layer") == BATCH * (16 * 4 + 8)
    True
    """
    x, y = workload(name).arrays()
    arrays = [*(x if isinstance(x, tuple) else (x,)), y]
    return sum(array.nbytes // len(array) * BATCH for array in arrays)
