"""Buckets: tensors of all replicas, summed by collectives of about one size, in the order in which they become ready.

Small tensors are merged and large ones cut, so that the first sums travel while the backward pass still computes the
rest, and several are under way at once. Every replica cuts alike, whatever it has to send.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import tensorflow as tf

from autodist_core.kernel import editor
from autodist_core.kernel.kernel import Draft
from autodist_core.kernel.placement import Replica


@dataclass(frozen=True)
class Lane:
    """What tensors must have in common to share a collective."""

    occurrence: int
    group: int
    hint: str
    dtype: tf.DType
    limit: int
    """The most bytes of one collective; an element larger than that travels alone."""


@dataclass(frozen=True)
class Load:
    """One tensor to be summed: its name in this graph on each replica."""

    lane: Lane
    label: str
    ready: int
    """When it is computed, counted in captured nodes: backward order."""
    shape: tuple[int, ...]
    tensors: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many elements it has."""
        return prod(self.shape)


@dataclass(frozen=True)
class Piece:
    """Some consecutive elements of a tensor."""

    load: Load
    start: int
    size: int


Bucket = tuple[Piece, ...]


def fill(loads: Sequence[Load]) -> list[Bucket]:
    """Buckets for tensors of one lane, as they become ready; tensors without elements go into none."""
    buckets: list[list[Piece]] = []
    room = 0
    for load in sorted(loads, key=lambda load: load.ready):
        limit = max(load.lane.limit // load.lane.dtype.size, 1)
        for start in range(0, load.size, limit):
            piece = Piece(load, start, min(limit, load.size - start))
            if piece.size > room:
                buckets.append([])
                room = limit
            buckets[-1].append(piece)
            room -= piece.size
    return [tuple(bucket) for bucket in buckets]


def reduce(draft: Draft, loads: Sequence[Load]) -> dict[Load, tuple[str, ...]]:
    """Add the collectives that sum these tensors; returns the sum of each on every replica."""
    lanes: dict[Lane, list[Load]] = {}
    for load in loads:
        lanes.setdefault(load.lane, []).append(load)
    sums: dict[Load, list[str]] = {load: [] for load in loads}
    filled = {lane: fill(members) for lane, members in lanes.items()}
    for replica in draft.placement.replicas:
        number = draft.collectives
        arrived: dict[Load, list[str]] = {load: [] for load in loads}
        for lane, buckets in filled.items():
            for bucket in buckets:
                label = f"all_reduce/{lane.occurrence}/group{lane.group}_{lane.hint}_{lane.dtype.name}/bucket{number}"
                for piece, total in zip(bucket, _bucket(draft, replica, label, lane, bucket, number), strict=True):
                    arrived[piece.load].append(total)
                number += 1
        for load, parts in arrived.items():
            sums[load].append(_whole(draft, replica, load, parts))
    draft.collectives += sum(map(len, filled.values()))
    return {load: tuple(names) for load, names in sums.items()}


def _bucket(draft: Draft, replica: Replica, label: str, lane: Lane, bucket: Bucket, number: int) -> list[str]:
    """One collective on one replica; returns the sum of each of its pieces, flat."""
    name = f"{label}/{replica.prefix}"
    parts = [_part(draft, replica, f"{name}/part{index}", piece) for index, piece in enumerate(bucket)]
    joined = draft.join(f"{name}/joined", parts, lane.dtype, replica.device)
    total = _collective(draft, replica, f"{name}/sum", joined, lane, number)
    if len(bucket) == 1:
        return [total]
    sizes = np.array([piece.size for piece in bucket], np.int32)
    lengths = draft.editor.constant(f"{name}/lengths", sizes, tf.int32, replica.device)
    axis = draft.editor.constant(f"{name}/axis", 0, tf.int32, replica.device)
    split = draft.editor.add(
        "SplitV", f"{name}/split", [total, lengths, axis], replica.device, T=lane.dtype, Tlen=tf.int32,
        num_split=len(bucket),
    )
    return [editor.tensor(split, index) for index in range(len(bucket))]


def _part(draft: Draft, replica: Replica, name: str, piece: Piece) -> str:
    load = piece.load
    flat = f"{load.label}/{replica.prefix}/flat"
    if flat not in draft.editor:
        _reshape(draft, replica, flat, load.tensors[replica.index], (load.size,), load.lane.dtype)
    if piece.size == load.size:
        return flat
    # Where it starts at an aligned address, as pieces of large tensors do, a slice is a view and no copy.
    bounds = [
        draft.editor.constant(f"{name}/{key}", [value], tf.int32, replica.device)
        for key, value in (("begin", piece.start), ("size", piece.size))
    ]
    return draft.editor.add("Slice", name, [flat, *bounds], replica.device, T=load.lane.dtype, Index=tf.int32)


def _whole(draft: Draft, replica: Replica, load: Load, parts: Sequence[str]) -> str:
    if not parts:
        return load.tensors[replica.index]
    name = f"{load.label}/{replica.prefix}/total"
    joined = draft.join(f"{name}/joined", parts, load.lane.dtype, replica.device)
    return _reshape(draft, replica, name, joined, load.shape, load.lane.dtype)


def _reshape(
    draft: Draft, replica: Replica, name: str, source: str, shape: tuple[int, ...], dtype: tf.DType
) -> str:
    target = draft.editor.constant(f"{name}/shape", np.array(shape, np.int32), tf.int32, replica.device)
    return draft.editor.add("Reshape", name, [source, target], replica.device, T=dtype, Tshape=tf.int32)


def _collective(draft: Draft, replica: Replica, name: str, flat: str, lane: Lane, number: int) -> str:
    scalars = {
        "group_size": len(draft.placement.replicas), "group_key": 1, "instance_key": _instance_key(draft, number),
    }  # fmt: skip
    inputs = [
        draft.editor.constant(f"{name}/{key}", value, tf.int32, replica.host) for key, value in scalars.items()
    ]
    return draft.editor.add(
        "CollectiveReduceV2", name, [flat, *inputs], replica.device, T=lane.dtype, merge_op="Add", final_op="Id",
        communication_hint=lane.hint, timeout_seconds=0.0, is_stateless=False, Nordering_token=0,
        max_subdivs_per_device=-1,
    )


def _instance_key(draft: Draft, number: int) -> int:
    """A number that every replica derives alike, different for every collective of every graph of one session.

    Collectives of one graph count on from its own start, so that no two of them can meet however many there are.
    """
    text = f"{draft.active}/{draft.captured.digest}"
    start = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    return (start + number) & 0x7FFFFFFF
