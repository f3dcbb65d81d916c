"""What the memory of a device must hold in a step, and whether it fits.

In: the bytes of each part at the moment when they are most, and what the device has. Out: text. The CPU devices of a
machine share its memory::

    memory of localhost: 1.2 GiB = weights 256.0 MiB + optimizer 512.0 MiB + gradients 256.0 MiB + ...; fits
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from autodist_core.errors import some
from autodist_core.step.grouping import by_key
from autodist_core.step.values import format_bytes


@dataclass(frozen=True)
class DeviceMemory:
    """The bytes in one memory: that of a machine, which its CPU devices share, or that of a GPU.

    >>> need = DeviceMemory(("a:GPU:0",), 3 << 30, activations=88 << 30, available=80 << 30, would="PartitionedPS")
    >>> need.fits, need.verdict
    (False, 'needs 91.0 GiB, the device has 80.0 GiB: PartitionedPS would fit')
    >>> str(DeviceMemory(("localhost",), weights=2048, available=1 << 30))
    'memory of localhost: 2.0 KiB = weights 2.0 KiB; fits'
    """

    devices: tuple[str, ...]
    """Several if the bytes of each are these."""
    weights: int = 0
    """The copies of the model's variables, with metrics and seeds."""
    optimizer: int = 0
    gradients: int = 0
    activations: int = 0
    """The batch, what the forward pass keeps for the backward pass, and what is being computed."""
    buffers: int = 0
    """What travels, and what an update makes in between."""
    available: int | None = None
    """What the device has for the training, with what the model's variables take already; None if it is not known."""
    would: str = ""
    """What would fit, in words."""
    known: bool = True
    """Whether this is all: without a batch, it is the state only."""

    @property
    def peak(self) -> int:
        """The most bytes."""
        return self.weights + self.optimizer + self.gradients + self.activations + self.buffers

    @property
    def fits(self) -> bool:
        """Whether it fits, as far as is known."""
        return self.available is None or self.peak <= self.available

    @property
    def verdict(self) -> str:
        """Whether it fits, in words."""
        if not self.fits:
            has = f"needs {format_bytes(self.peak)}, the device has {format_bytes(self.available or 0)}"
            return has + (f": {self.would} would fit" if self.would else "")
        if not self.known:
            return "plan(x, y) tells the rest"
        return "it is not known what the device has" if self.available is None else "fits"

    def __str__(self) -> str:
        parts = [(name, getattr(self, name)) for name in _PARTS]
        text = " + ".join(f"{name} {format_bytes(size)}" for name, size in parts if size) or "nothing"
        each = "each of " if len(self.devices) > 1 else ""
        return f"memory of {each}{some(self.devices)}: {format_bytes(self.peak)} = {text}; {self.verdict}"


_PARTS = ("weights", "optimizer", "gradients", "activations", "buffers")


def together(memories: Iterable[DeviceMemory]) -> tuple[DeviceMemory, ...]:
    """Memories with equal bytes and verdicts as one.

    >>> [each.devices for each in together([DeviceMemory(("a",), 4), DeviceMemory(("b",), 4), DeviceMemory(("c",), 5)])]
    [('a', 'b'), ('c',)]
    """
    found = by_key((replace(each, devices=()), name) for each in memories for name in each.devices)
    return tuple(replace(key, devices=tuple(devices)) for key, devices in found.items())
