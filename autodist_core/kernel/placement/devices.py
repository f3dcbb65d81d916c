"""Map a device of the resource spec to a device of TensorFlow, in this process or in a task of a cluster.

In: a name of the resource spec. Out: a name of TensorFlow::

    10.0.0.2:GPU:1  ->  /job:run/replica:0/task:1/device:GPU:1
"""

from dataclasses import dataclass

from autodist_core.resource_spec import DeviceSpec


@dataclass(frozen=True)
class Tasks:
    """The tasks of a cluster, one for each node, the chief's first. Without tasks, all devices are of this process.

    >>> Tasks().device("10.0.0.1:GPU:1")
    '/device:GPU:1'
    >>> Tasks("run", ("10.0.0.1", "10.0.0.2")).device("10.0.0.2:CPU:0")
    '/job:run/replica:0/task:1/device:CPU:0'
    """

    job: str = ""
    addresses: tuple[str, ...] = ()
    one_cpu: bool = False
    """Whether all CPU devices of this process are TensorFlow's first one, because it has made no others."""

    def device(self, name: str) -> str:
        """Return the TensorFlow device of a device of the resource spec."""
        found = DeviceSpec.parse(name)
        if not self.job:
            return f"/device:{found.kind}:{0 if self.one_cpu and found.kind == 'CPU' else found.index}"
        return f"/job:{self.job}/replica:0/task:{self.addresses.index(found.address)}/device:{found.kind}:{found.index}"

    @property
    def chief(self) -> str:
        """The CPU to which the session feeds values."""
        return f"/job:{self.job}/replica:0/task:0/device:CPU:0" if self.job else "/device:CPU:0"


def host_of(device: str) -> str:
    """Return the CPU of the process that has a device.

    >>> host_of("/job:run/replica:0/task:1/device:GPU:3")
    '/job:run/replica:0/task:1/device:CPU:0'
    """
    return f"{device.rpartition('/device:')[0]}/device:CPU:0"
