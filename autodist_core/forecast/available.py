"""What a memory has for a training: that of a machine, and that of each of its GPUs.

In: the name of a memory. Out: bytes, or None where nobody can tell, as of a machine whose agent was not asked yet.
"""

from autodist_core.cluster.agents.agent_handle import DESCRIBED
from autodist_core.cluster.on_node.machine import cards, machine_resources
from autodist_core.resource_spec import DeviceSpec


def available(memory: str, here: str, held: int = 0) -> int | None:
    """The bytes that a memory has; `here` is this machine's address.

    `held` are the bytes that the model's variables take in this process already. Another machine is not asked: its
    agent described it before it ran anything, or nothing is known.

    >>> free = available("localhost", "localhost")
    >>> free > 0, available("10.0.0.2", "localhost") is None
    (True, True)
    """
    address, _, device = memory.partition(":GPU:")
    described = DESCRIBED.get(address, {})
    if device:
        sizes, index = cards() if address == here else described.get("cards", ()), DeviceSpec.parse(memory).index
        return sizes[index] if index < len(sizes) else None
    if address == here:
        return machine_resources()["memory_free"] + held
    return described.get("memory_free")
