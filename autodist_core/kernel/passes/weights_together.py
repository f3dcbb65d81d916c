"""WeightsTogether: the small weights that a replica gathers one after the other travel together.

In: the finished order of a step. Out: one vector from each owner, in place of a part of each weight. For two weights::

    replica1/dense/Read/part_0, replica1/dense_1/Read/part_0   ->   replica1/weights/0/0/sent     on the owner
                                                                    replica1/weights/0/0/apart    on the replica

All begin when the first of them may (`kernel/splitting/gathers.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import tensorflow as tf

from autodist_core.kernel import packing
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.placement.placement import Replica
from autodist_core.step import naming
from autodist_core.step.grouping import grouped
from autodist_core.step.index import output_type

TOGETHER_BYTES = 1 << 22
"""The most bytes of weights that travel together."""


@dataclass(frozen=True)
class _Part:
    """A part of one gathered weight. The owner sends a tensor: the value that it reads, or this in half precision."""

    gather: str
    owner: str
    read: str
    sent: str
    shape: tuple[int, ...]
    dtype: tf.DType


class WeightsTogether(Kernel):
    """Packs the parts of small weights that an owner sends a replica for consecutive uses.

    >>> from autodist_core.kernel.example import example_change
    >>> from autodist_core.strategy import Sharded
    >>> example_change(Sharded(weights="gathered"), "WeightsTogether", "ConcatV2")
    ''
    """

    reads = ("compute",)

    def apply(self, draft: Draft) -> None:
        """Replace the messages of an owner for several weights by one."""
        if draft.placement.remote_rows and packing.apart(replica.device for replica in draft.active_replicas):
            for number, (dtype, parts) in enumerate(_together(draft)):
                for replica in draft.active_replicas:
                    _pack(draft, replica, f"{replica.prefix}/weights/{number}", parts, dtype)


def _together(draft: Draft) -> Iterator[tuple[tf.DType, list[_Part]]]:
    """Yield the parts of consecutive weights of one type that have the same owners."""
    of_owners = grouped(_gathers(draft), lambda parts: (frozenset(part.owner for part in parts), parts[0].dtype))
    for (_, dtype), gathers in of_owners.items():
        sizes = [sum(prod(part.shape) * dtype.size for part in parts) for parts in gathers]
        for group in packing.filled(sizes, TOGETHER_BYTES):
            if len(group) > 1:
                yield dtype, [part for place in group for part in gathers[place]]


def _gathers(draft: Draft) -> Iterator[list[_Part]]:
    """Yield the parts of each weight whose gather may begin earlier, in the order of the uses."""
    step, nodes, first = draft.step, draft.step.nodes, draft.active_replicas[0]
    for name in step.in_order(draft.compute):
        parts = []
        for source in list(naming.data_inputs(nodes[name]))[:-1] if nodes[name].op == "ConcatV2" else ():
            sent = naming.node_of(source)
            read = naming.node_of(nodes[sent].input[0]) if nodes[sent].op == "Cast" else sent
            touched = step.touches.get(read, ()) if nodes[read].op == "ReadVariableOp" else ()
            shards = [touch.variable for touch in touched if touch.variable in draft.placement.remote_rows]
            if not shards or naming.branch_of(nodes[name]):
                break
            awaited = {each[1:] for each in nodes[read].input if naming.is_control(each)}
            uses = {f"^{first.copy_of(each)}" for each in awaited - step.touches.keys() - step.side_effects}
            # What else a read waits for may follow from the uses of the other weights.
            if not uses.issuperset(each for each in draft.editor[first.copy_of(read)].input if naming.is_control(each)):
                break
            owner, shape = draft.editor[first.copy_of(sent)].device, tuple(step.variables[shards[0]].shape)
            parts.append(_Part(name, owner, read, sent, shape, output_type(step, sent)))
        else:
            if parts:
                yield parts


def _pack(draft: Draft, replica: Replica, label: str, parts: list[_Part], dtype: tf.DType) -> None:
    editor = draft.editor
    begins = [each for each in editor[replica.copy_of(parts[0].read)].input if naming.is_control(each)]
    for read in (replica.copy_of(part.read) for part in parts):
        editor.change(read, inputs=[*naming.data_inputs(editor[read]), *begins])
    of_owners = grouped(sorted(parts, key=lambda part: part.owner), lambda part: part.owner)
    for number, (owner, owned) in enumerate(of_owners.items()):
        sent = [replica.copy_of(part.sent) for part in owned]
        vector = packing.packed(draft, f"{label}/{number}/sent", sent, dtype, owner)
        shapes = [part.shape for part in owned]
        apart = packing.unpacked(draft, f"{label}/{number}/apart", vector, shapes, dtype, replica.device)
        for part, source, value in zip(owned, sent, apart, strict=True):
            editor.read_instead(replica.copy_of(part.gather), {source: value})
