"""The devices of a resource spec that compute, and whether this machine has them.

In: a resource spec. Out: names of devices, a note for the plan, or an error. The sessions and the fronts call these
functions.
"""

from __future__ import annotations

import tensorflow as tf

from autodist_core.errors import ResourceSpecError, amount
from autodist_core.resource_spec import ResourceSpec


def local_spec(spec: ResourceSpec) -> ResourceSpec:
    """The spec. A ResourceSpecError names the GPUs that this machine does not have.

    >>> local_spec(ResourceSpec.local(cpus=2)).num_cpus
    2
    """
    missing, present = _missing(spec)
    if missing and not present:
        raise ResourceSpecError(
            f"{', '.join(missing)}: this machine has no GPU that TensorFlow can use. Take 'gpus' out and list CPU "
            "devices in 'cpus' instead, or install the driver and TensorFlow for GPUs."
        )
    if missing:
        raise ResourceSpecError(
            f"{', '.join(missing)}: this machine has {amount(present, 'GPU')} that TensorFlow can "
            "use. Take the others out of 'gpus', or list CPU devices in 'cpus' instead."
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


def _missing(spec: ResourceSpec) -> tuple[list[str], int]:
    """The GPUs of the spec that this machine does not have, and the number of those that it has."""
    present = len(tf.config.list_physical_devices("GPU"))
    return [name for name, _ in spec.gpu_devices if int(name.rsplit(":", 1)[1]) >= present], present


def replicas(spec: ResourceSpec) -> tuple[str, ...]:
    """The devices that compute: the GPUs; without GPUs, the CPU devices.

    >>> replicas(ResourceSpec.local(cpus=2))
    ('localhost:CPU:0', 'localhost:CPU:1')
    """
    return tuple(name for name, _ in spec.replica_devices)
