"""The devices of a resource spec that compute, and whether this machine has them.

In: a resource spec. Out: names of devices, or an error. The sessions and the fronts call these functions.
"""

from __future__ import annotations

import tensorflow as tf

from autodist_core.errors import ResourceSpecError
from autodist_core.resource_spec import ResourceSpec


def local_spec(spec: ResourceSpec) -> ResourceSpec:
    """The spec. A ResourceSpecError names the GPUs that this machine does not have.

    >>> local_spec(ResourceSpec.local(cpus=2)).num_cpus
    2
    """
    present = len(tf.config.list_physical_devices("GPU"))
    missing = [name for name, _ in spec.gpu_devices if int(name.rsplit(":", 1)[1]) >= present]
    if missing:
        raise ResourceSpecError(
            f"{', '.join(missing)}: this machine has {present} GPU{'' if present == 1 else 's'} that TensorFlow can "
            "use. Take the others out of 'gpus', or list CPU devices in 'cpus' instead."
        )
    return spec


def replicas(spec: ResourceSpec) -> tuple[str, ...]:
    """The devices that compute: the GPUs; without GPUs, the CPU devices.

    >>> replicas(ResourceSpec.local(cpus=2))
    ('localhost:CPU:0', 'localhost:CPU:1')
    """
    return tuple(name for name, _ in spec.replica_devices)
