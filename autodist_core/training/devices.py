"""The devices of a resource spec that compute, and whether this machine has them.

In: a resource spec. Out: names of devices, a note for the plan, or an error. The sessions and the fronts call these
functions.

A program can divide a card into several GPUs of TensorFlow, before TensorFlow starts::

    tf.config.set_logical_device_configuration(card, [tf.config.LogicalDeviceConfiguration(memory_limit=4096)] * 2)

A resource spec names these as it names cards: `gpus: [0, 1]`.
"""

from dataclasses import replace

import tensorflow as tf

from autodist_core.errors import ResourceSpecError, amount
from autodist_core.resource_spec import ResourceSpec
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.strategy.synchronizers import AllReducePlan, Synchronizer


def local_spec(spec: ResourceSpec) -> ResourceSpec:
    """The spec. A ResourceSpecError names the GPUs that this machine does not have.

    >>> local_spec(ResourceSpec.local(cpus=2)).num_cpus
    2
    """
    missing, present = _missing(spec)
    if missing:
        raise ResourceSpecError(
            f"{', '.join(missing)}: this machine has {amount(present or 'no', 'GPU')} that TensorFlow can use. "
            "Take them out of 'gpus', and list CPU devices in 'cpus', or install the driver and TensorFlow for GPUs."
        )
    return spec


def absent(spec: ResourceSpec) -> tuple[str, ...]:
    """The plan's note on the GPUs of a spec that this machine does not have. Planning for another machine is allowed.

    >>> absent(ResourceSpec.local(cpus=2))
    ()
    """
    missing = [":".join(name.rsplit(":", 2)[1:]) for name in _missing(spec)[0]]
    if not missing:
        return ()
    return (
        f"this machine has no {', '.join(missing)} that TensorFlow can use: the plan is for another machine, and "
        "training is refused here",
    )


def without_nccl_on_one_card(strategy: CompiledStrategy, spec: ResourceSpec) -> CompiledStrategy:
    """The strategy, with TensorFlow's ring in place of NCCL where two replicas are parts of one card, and a note.

    NCCL fails there, with "Duplicate GPU detected".

    >>> strategy = CompiledStrategy("3f9c21", ("localhost:CPU:0", "localhost:CPU:1"), ())
    >>> without_nccl_on_one_card(strategy, ResourceSpec.local(cpus=2)) is strategy
    True
    """
    cards = dict(enumerate(_cards()))
    used = [cards.get(device.index, -1 - device.index) for _, device in spec.gpu_devices]
    changed = tuple(
        replace(
            plan, synchronizer=_in_a_ring(plan.synchronizer),
            shards=tuple(replace(shard, synchronizer=_in_a_ring(shard.synchronizer)) for shard in plan.shards),
        )
        for plan in strategy.variables
    )
    if len(used) == len(set(used)) or changed == strategy.variables:
        return strategy
    note = (
        "replicas that are parts of one card add their gradients in TensorFlow's ring: NCCL takes each card once only"
    )
    return replace(strategy, variables=changed, notes=(*strategy.notes, note))


def _in_a_ring(synchronizer: Synchronizer) -> Synchronizer:
    if isinstance(synchronizer, AllReducePlan) and synchronizer.spec == "NCCL":
        return replace(synchronizer, spec="RING")
    return synchronizer


def _missing(spec: ResourceSpec) -> tuple[list[str], int]:
    """The GPUs of the spec that this process does not have, and the number of those that it has."""
    present = len(_cards())
    return [name for name, device in spec.gpu_devices if device.index >= present], present


def _cards() -> tuple[int, ...]:
    """For each GPU of TensorFlow in this process, the number of the card that it is, or is a part of."""
    return tuple(
        card for card, gpu in enumerate(tf.config.get_visible_devices("GPU"))
        for _ in tf.config.get_logical_device_configuration(gpu) or (None,)
    )
