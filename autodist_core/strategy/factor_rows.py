"""Decide for which batches the factors of a gradient travel, and not the gradient.

In: a variable, the bytes that a replica sends for its gradient, and the machines. Out: the most examples of a batch for
which the factors travel. The gradient of a dense layer's kernel is a product of two factors, which have a row for each
example::

    gradient (512, 512) = inputs (examples, 512)' x gradients of the outputs (examples, 512)

An all-reduce brings twice the gradient's bytes to a machine, less what the machine has. If the factors of all machines
are brought to each machine instead, that is once the bytes of all rows, less those of the machine. Each machine then
multiplies the rows of all machines. So the factors pay as long as the batch has few examples, and the network is slow.
A compressed gradient has fewer bytes, so the factors, which travel as they are, then pay for smaller batches only.
"""

from autodist_core.resource_spec import ResourceSpec
from autodist_core.step.graph_item import Variable

LARGE = 256
"""A kernel is large if it has so many entries, or more, for each entry of a row of both factors.

Copying the rows then costs less than adding two gradients."""
FLOPS = 2e10
"""The operations that a machine is taken to compute in a second: few, so that factors travel where they surely pay."""
TYPES = ("float16", "float32", "float64")
"""The types of which factors travel."""
AT_ONCE_IN_AGENTS = 2
"""The most replicas of a machine that multiply at once in an agent, and between which factors travel.

There an operation may have one thread only, which would compute for all of them."""


def factor_rows(wanted: int | None, variable: Variable, sent: int, resource_spec: ResourceSpec) -> int:
    """Return the most examples of a batch for which the factors of a variable's gradient travel; 0 for none.

    `wanted` is what the user said, for every matrix: the plan says where that has no effect. `None` leaves it to the
    bytes that travel and to what the arithmetic costs. `sent` is the bytes of the gradient, after compression.

    >>> spec = ResourceSpec({"nodes": [{"address": "10.0.0.1", "chief": True}, {"address": "10.0.0.2"}]})
    >>> large, small = Variable("kernel", (512, 512), "float32"), Variable("kernel", (64, 10), "float32")
    >>> factor_rows(None, large, large.byte_size, spec), factor_rows(None, large, large.byte_size // 2, spec)
    (284, 142)
    >>> factor_rows(None, small, small.byte_size, spec), factor_rows(16, small, small.byte_size, spec)
    (0, 16)
    """
    addresses = {device.address for _, device in resource_spec.replica_devices}
    if (said := _said(wanted, variable, resource_spec)) is not None:
        return said
    inputs, outputs = variable.shape
    rate = min(resource_spec.network_bandwidth[address] for address in addresses) * 1e9 / 8
    of_a_row = (inputs + outputs) * variable.item_size + 2 * inputs * outputs * rate / FLOPS
    return int(2 * sent / of_a_row)


def factor_rows_of_shards(
    wanted: int | None, variable: Variable, axis: int, sent: int, resource_spec: ResourceSpec
) -> int:
    """Return the same for a variable in shards along an axis, of which each machine owns as much.

    Each machine multiplies the rows of the whole batch for its shards only, which is what it computes without factors.
    The factors pay if they have at most half of the bytes.

    >>> spec = ResourceSpec({"nodes": [{"address": "10.0.0.1", "chief": True}, {"address": "10.0.0.2"}]})
    >>> kernel = Variable("kernel", (512, 512), "float32")
    >>> factor_rows_of_shards(None, kernel, 0, kernel.byte_size, spec)
    170
    """
    if (said := _said(wanted, variable, resource_spec)) is not None:
        return said
    machines = len({device.address for _, device in resource_spec.replica_devices})
    of_a_row = variable.shape[axis] / machines + variable.shape[1 - axis]
    return int(sent / (of_a_row * variable.item_size) / 2)


def _said(wanted: int | None, variable: Variable, resource_spec: ResourceSpec) -> int | None:
    """What needs no comparison of bytes; None otherwise."""
    if len(variable.shape) != 2 or 0 in variable.shape or variable.is_sparse:
        return 0
    if wanted is not None:
        return wanted
    devices = [device for _, device in resource_spec.replica_devices]
    on_gpus = any(device.kind == "GPU" for device in devices)
    if len({device.address for device in devices}) < 2 or on_gpus or variable.dtype not in TYPES:
        return 0
    inputs, outputs = variable.shape
    return None if inputs * outputs >= LARGE * (inputs + outputs) else 0
