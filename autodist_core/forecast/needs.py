"""Foretell what a training step takes in each memory, and what would fit where it does not.

In: a captured step, a strategy, and the number of examples of a batch. Out: a `DeviceMemory` for each machine and GPU.
The graph of all replicas is built as for a training, and its operations are gone through as they would run: nothing is
computed. On top come the copies of the variables, as they are placed.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from math import prod
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.cluster.agents.agent_handle import DESCRIBED
from autodist_core.cluster.on_node.machine import cards, machine_resources
from autodist_core.errors import AutodistError
from autodist_core.forecast.liveness import ACTIVATIONS, ALIASES, BUFFERS, GRADIENTS, Operation, Run
from autodist_core.forecast.tensors import Operations
from autodist_core.kernel import DistributedGraph, Placement, Tasks, build, place
from autodist_core.log import log
from autodist_core.plan.memory import DeviceMemory, together
from autodist_core.resource_spec import DeviceSpec
from autodist_core.step.graph_item import GraphItem
from autodist_core.step.naming import node_of
from autodist_core.strategy import Sharded, StrategyBuilder
from autodist_core.strategy.compiled import CompiledStrategy
from autodist_core.strategy.written import written

_AMPLE = 200
"""How many times the state and the batch no step takes: activations of convolutions are some 100 times the batch."""


def forecast(
    item: GraphItem, strategy: CompiledStrategy, share_memory: bool | None, examples: int,
    others: Sequence[StrategyBuilder] = (), made: Callable[[StrategyBuilder], CompiledStrategy] | None = None,
) -> tuple[DeviceMemory, ...]:
    """The memory of each device in a step on a batch; none if the graph cannot be built for it.

    Where the strategy does not fit, the first of the builders `others` whose strategy does is named. `made` makes the
    strategy of a builder.

    >>> from autodist_core import ResourceSpec, StrategyCompiler
    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.strategy import AllReduce
    >>> item, spec = example_step(), ResourceSpec.local(cpus=2)
    >>> strategy = StrategyCompiler(item, spec).compile(AllReduce().build(item, spec))
    >>> (memory,) = forecast(item, strategy, None, 4)
    >>> memory.devices, memory.weights, memory.optimizer, memory.fits
    (('localhost',), 20, 20, True)
    """
    def placement(strategy: CompiledStrategy) -> Placement:
        return place(item, strategy, share_memory, tasks_of(strategy))

    found = foretold(item, placement(strategy), examples)
    if all(each.fits for each in found):
        return found
    placed, would = placement(strategy), list[str]()
    if fitting := _fitting(lambda count: foretold(item, placed, count), found, examples):
        would.append(f"a batch of {fitting}")
    if made:
        named = _that_fits(others, lambda each: foretold(item, placement(made(each)), examples), strategy.replicas)
        would += islice(named, 1)
    return tuple(each if each.fits else replace(each, would=", or ".join(would)) for each in found)


def foretold(
    item: GraphItem, placement: Placement, examples: int, least: int | None = None
) -> tuple[DeviceMemory, ...]:
    """The memory of each device of a placement; none if the graph cannot be built for so many examples.

    `least` are the bytes of the batch. With it, a step is not looked at if it would fit in any case.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS
    >>> item, placement = example_step(), example_placement(PS())
    >>> len(foretold(item, placement, 4)), foretold(item, placement, 4, least=48)
    (1, ())
    """
    state, here = sum(variable.byte_size for variable in item.variables), placement.nodes[0]
    held = item.found.get("held", state)
    if least is not None:
        names = {_name(placement, replica.device) for replica in placement.replicas}
        has = [size for name in names if (size := available(name, here, held)) is not None]
        if not has or min(has) > _AMPLE * (state + least):
            return ()
    try:
        found = memories(item, placement, examples)
    except (AutodistError, ValueError) as error:
        log.debug("What a step takes is not foretold: %s", error)
        return ()
    return together(replace(each, available=available(each.devices[0], here, held)) for each in found)


def tasks_of(strategy: CompiledStrategy) -> Tasks:
    """The tasks of a cluster on which a strategy would run; on one machine, its CPU devices are one.

    >>> tasks_of(CompiledStrategy("3f9c21", ("10.0.0.1:CPU:0", "10.0.0.2:CPU:0"), ())).addresses
    ('10.0.0.1', '10.0.0.2')
    """
    return Tasks("run", strategy.machines) if len(strategy.machines) > 1 else Tasks(one_cpu=True)


def memories(item: GraphItem, placement: Placement, examples: int) -> list[DeviceMemory]:
    """What a step takes in each memory.

    >>> from autodist_core.capture.example import example_step
    >>> from autodist_core.kernel.example import example_placement
    >>> from autodist_core.strategy import PS
    >>> sum(memory.weights for memory in memories(example_step(), example_placement(PS()), 4)) > 0
    True
    """
    count = min(len(placement.replicas), examples)
    sizes = [len(part) for part in np.array_split(np.arange(examples), count)]
    graph = build(item, placement, count, sizes=sizes, examples=examples)
    memory_of = partial(_name, placement)
    found = defaultdict[str, Counter[str]](Counter)
    placed = placement.partitioner.apply(item).variables
    kinds = {variable.name: variable.kind for variable in item.variables}
    for variable in {each.name: each for each in (*item.variables, *placed)}.values():
        kind = "optimizer" if kinds[variable.part_of or variable.name] == "optimizer" else "weights"
        for copy in placement.copies(variable.name):
            found[memory_of(copy.device)][kind] += variable.byte_size
    for added in graph.added:
        found[memory_of(added.device)][BUFFERS] += prod(added.shape) * tf.as_dtype(added.dtype).size
    made = Operations(graph.graph_def, max(sizes), memory_of, _kind)
    operations = made.of(graph.graph_def.node, _fed(item, graph, sizes), graph.outputs)
    for memory, most in Run(_with_gradients(operations, item, placement)).most.items():
        found[memory] += most
    return [
        DeviceMemory(
            (name,), each["weights"], each["optimizer"], each[GRADIENTS], each[ACTIVATIONS], each[BUFFERS]
        )
        for name, each in sorted(found.items())
    ]


def _name(placement: Placement, device: str) -> str:
    """The memory of a device of TensorFlow: that of its machine, or its own."""
    parsed = tf.DeviceSpec.from_string(device)
    address = placement.nodes[parsed.task or 0]
    return f"{address}:GPU:{parsed.device_index}" if parsed.device_type == "GPU" else address


def _fed(item: GraphItem, graph: DistributedGraph, sizes: Sequence[int]) -> dict[str, Any]:
    found = {}
    for rows, names in zip(sizes, graph.feeds, strict=True):
        for index, name in zip(graph.inputs, names, strict=True):
            tensor = item.inputs[index]
            known = (rows, *tensor.shape[1:]) if tensor.has_rows and tensor.shape else tensor.shape
            found[name] = tf.TensorSpec(known, tensor.dtype)
    return found


def _kind(name: str) -> str:
    return ACTIVATIONS if name.startswith("replica") else GRADIENTS if name.startswith("reduced") else BUFFERS


def _with_gradients(operations: list[Operation], item: GraphItem, placement: Placement) -> list[Operation]:
    """The operations. Those that make gradients are of that kind."""
    markers = {node_of(name) for each in item.gradients for name in (each.values, each.indices) if name}
    names = {f"{replica.prefix}/{marker}" for replica in placement.replicas for marker in markers}
    found = list(operations)
    for number, each in enumerate(operations):
        if each.name in names:
            while operations[number].op in ALIASES and operations[number].inputs:
                number = operations[number].inputs[0][0]
            found[number] = replace(operations[number], kind=GRADIENTS)
    return found


def _that_fits(
    builders: Iterable[StrategyBuilder], needs: Callable[[StrategyBuilder], Sequence[DeviceMemory]],
    replicas: Sequence[str],
) -> Iterator[str]:
    """Builders whose strategies fit, as text; those of shards also with shares by what each device has to give."""
    for builder in builders:
        found = needs(builder)
        if found and all(each.fits for each in found):
            yield written(builder)
        elif isinstance(builder, Sharded) and len({*(shares := _by_room(found, replicas)).values()}) > 1:
            uneven = replace(builder, shares=shares)
            if (found := needs(uneven)) and all(each.fits for each in found):
                yield written(uneven)


def _by_room(needs: Iterable[DeviceMemory], replicas: Iterable[str]) -> dict[str, int]:
    """What each replica may own in proportion to the others; empty if one has no room for any.

    >>> needs = [DeviceMemory((name,), weights=8, activations=4, available=has) for name, has in (("a", 8), ("b", 20))]
    >>> _by_room(needs, ["a:CPU:0", "b:CPU:0", "b:CPU:1"])
    {'a': 8, 'b': 16}
    """
    on = Counter(name if ":GPU:" in name else DeviceSpec.parse(name).address for name in replicas)
    rooms = {
        name: ((each.available or 0) - each.peak + each.weights + each.optimizer) / on[name]
        for each in needs for name in each.devices if name in on
    }
    if min(rooms.values(), default=0) <= 0:
        return {}
    return {name: max(1, int(16 * room / max(rooms.values()))) for name, room in rooms.items()}


def _fitting(needs: Callable[[int], Sequence[DeviceMemory]], found: Sequence[DeviceMemory], examples: int) -> int:
    """The largest batch that would fit, in steps of 8 examples if there are as many; 0 if none would.

    What a step takes grows evenly with the batch, so two batches tell of all others. The result is tried.
    """
    half = needs(examples // 2) if examples > 1 else ()
    least = examples
    for one, other in zip(found, half, strict=False):
        growth = (one.peak - other.peak) / (examples - examples // 2)
        if not one.fits:
            spare = (one.available or 0) - one.peak
            least = min(least, int(examples + spare / growth) if growth > 0 else 0)
    for size in (least, least * 3 // 4):
        size -= size % 8 if size > 8 else 0
        if size > 0 and all(each.fits for each in needs(size)):
            return size
    return 0


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
    if address == here:  # the agent of this machine may have a limit of its own
        return max(machine_resources()["memory_free"] + held, described.get("memory_free", 0))
    return described.get("memory_free")
