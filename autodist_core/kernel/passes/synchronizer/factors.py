"""Bring the factors of gradients of all machines to each machine, and multiply there.

In: the factors of gradients that are products with a row for each example (`analysis/factored.py`), on each replica.
Out: the reduced gradients on every machine, `draft.reduced`. For a kernel over two machines with 64 examples each::

    all_reduce   MatMul(x', d) on each machine, and a sum      512 x 512 numbers travel
    factors      [x, d] of all machines on each machine        64 x (512 + 512) numbers travel
                 MatMul([x0, x1]', [d0, d1]) on each machine

The product of all rows is the sum of the machines' products. Rows of zeros add nothing to it. So a machine with fewer
examples pads its rows, and one without examples sends zeros only.

Factors travel in buckets, in the order in which the backward pass has them. A factor of several products in a bucket,
such as the input of several layers, travels once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from autodist_core.kernel.draft import Draft, Rows, copied, gradient_type
from autodist_core.kernel.passes import packing
from autodist_core.kernel.passes.synchronizer.buckets import instance_key
from autodist_core.kernel.passes.synchronizer.gathering import KEYS, LENGTHS, gathered, machines_of, places_of
from autodist_core.kernel.placement.placement import Owner, Replica
from autodist_core.step import naming
from autodist_core.step.graph_item import Gradient

_COLUMNS = 1 << 12
"""The most columns of a bucket, unless it has one product only. With 64 rows of float32 these are 1 MiB."""


def gather_factors(draft: Draft, owners: Sequence[Owner], gradients: Sequence[Gradient]) -> None:
    """Fill `draft.reduced` for gradients whose factors travel, for owners on several machines.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce(), before="AllReduceSynchronizer")
    >>> gather_factors(draft, draft.placement.owners, [])
    >>> draft.collectives
    0
    """
    together: dict[tuple[int, tf.DType], list[Gradient]] = {}
    for gradient in sorted(gradients, key=lambda each: draft.step.position[naming.node_of(each.values)]):
        together.setdefault((gradient.occurrence, gradient_type(draft.step, gradient)), []).append(gradient)
    there: dict[str, list[Replica]] = {}
    for replica in draft.placement.replicas:
        there.setdefault(replica.host, []).append(replica)
    for (occurrence, dtype), members in together.items():
        widths = [sum(draft.step.variables[each.variable].shape) for each in members]
        buckets = [_Bucket.of(draft, [members[at] for at in group]) for group in packing.filled(widths, _COLUMNS)]
        keys = [instance_key(draft, draft.collectives + number, KEYS) for number in range(len(buckets) + 1)]
        for machine in there.values():
            sender = _Sender(draft, machine, f"factors/{machine[0].prefix}/{occurrence}/{dtype.name}", dtype)
            places = sender.places(buckets, keys[0])
            for bucket, place, key in zip(buckets, places, keys[1:], strict=True):
                for gradient, product in sender.products(bucket, place, key).items():
                    for owner in owners:
                        if owner.replica in [replica.index for replica in machine]:
                            draft.reduced[gradient.variable, gradient.occurrence, owner.name] = Rows(product)
        draft.collectives += len(keys)
        draft.buckets += len(buckets)


@dataclass(frozen=True)
class _Bucket:
    """Some gradients, with their factors: the position of the left and of the right one in the bucket."""

    label: str
    gradients: tuple[Gradient, ...]
    factors: tuple[tuple[int, int], ...]
    tensors: tuple[str, ...]
    """The captured tensors that are factors, each once."""
    widths: tuple[int, ...]
    """How many columns each tensor has."""

    @staticmethod
    def of(draft: Draft, gradients: Sequence[Gradient]) -> _Bucket:
        width_of: dict[str, int] = {}
        pairs = []
        for gradient in gradients:
            product = draft.gradient_products[gradient.variable, gradient.occurrence]
            pair = [naming.canonical(source) for source in (product.left, product.right)]
            width_of |= dict(zip(pair, draft.step.variables[gradient.variable].shape, strict=True))
            pairs.append(pair)
        order = list(width_of)
        return _Bucket(
            naming.safe(gradients[0].variable), tuple(gradients),
            tuple((order.index(left), order.index(right)) for left, right in pairs), tuple(order),
            tuple(width_of.values()),
        )

    def lefts(self) -> list[str]:
        """The left factors: the forward pass knows them, and so how many rows the right ones will have."""
        return list(dict.fromkeys(self.tensors[left] for left, _ in self.factors))


@dataclass(frozen=True)
class _Sender:
    """One machine: what it sends, and the products that it computes of the rows of all machines."""

    draft: Draft
    machine: Sequence[Replica]
    name: str
    dtype: tf.DType

    def places(self, buckets: Sequence[_Bucket], key: int) -> list[str]:
        """Return for each bucket the place in `LENGTHS` of the rows to which every machine pads."""
        machines = machines_of(self.draft)
        own = {tensor: self._own(tensor) for bucket in buckets for tensor in bucket.lefts()}

        def find(*parts: tf.Tensor) -> list[tf.Tensor]:
            part_of = self._by_tensor(own, parts)
            rows = [
                tf.reduce_max([_rows(part_of[tensor]) for tensor in bucket.lefts()]) for bucket in buckets
            ]
            most = tf.reduce_max(tf.reshape(gathered(tf.stack(rows), machines, key), (-1, len(buckets))), 0)
            return tf.unstack(places_of(most), len(buckets))

        return self._traced(f"{self.name}/places", find, own, {})

    def products(self, bucket: _Bucket, place: str, key: int) -> dict[Gradient, str]:
        """Return the reduced gradients of a bucket."""
        machines, name = machines_of(self.draft), f"{self.name}/{bucket.label}"
        own = {tensor: self._own(tensor) for tensor in bucket.tensors}
        width_of = dict(zip(bucket.tensors, bucket.widths, strict=True))

        def multiply(*inputs: tf.Tensor) -> list[tf.Tensor]:
            *parts, at = inputs
            part_of = self._by_tensor(own, parts)
            length = tf.gather(tf.constant(LENGTHS, tf.int64), at)
            padded = [
                tf.pad(tf.concat(part_of[each], 0), [[0, length - _rows(part_of[each])], [0, 0]])
                for each in bucket.tensors
            ]
            everyone = tf.ensure_shape(gathered(tf.concat(padded, 1), machines, key + at), (None, sum(bucket.widths)))
            rows = tf.split(everyone, bucket.widths, 1)
            return [tf.matmul(rows[left], rows[right], transpose_a=True) for left, right in bucket.factors]

        found = self._traced(name, multiply, own, {place: tf.TensorSpec((), tf.int32)}, width_of)
        return dict(zip(bucket.gradients, found, strict=True))

    def _own(self, tensor: str) -> list[str]:
        """Return the copies of a captured tensor on the machine's replicas that have examples."""
        return [copied(replica, tensor) for replica in self.machine if replica.index in self.draft.active]

    def _by_tensor(
        self, own: dict[str, list[str]], parts: Sequence[tf.Tensor]
    ) -> dict[str, list[tf.Tensor]]:
        count = len(parts) // len(own)
        return {tensor: list(parts[at * count : (at + 1) * count]) for at, tensor in enumerate(own)}

    def _traced(
        self, name: str, function: Callable[..., list[tf.Tensor]], own: dict[str, list[str]],
        more: dict[str, tf.TensorSpec], width_of: dict[str, int] | None = None,
    ) -> list[str]:
        host = self.machine[0].host
        specs: dict[str, tf.TensorSpec] = {}
        for tensor, parts in own.items():
            width = (width_of or {}).get(tensor)
            names = parts or [self._nothing(f"{name}/{len(specs)}", width or 0)]
            specs.update(dict.fromkeys(names, tf.TensorSpec((None, width), self.dtype)))
        return list(self.draft.editor.trace(name, function, {**specs, **more}, host))

    def _nothing(self, name: str, columns: int) -> str:
        zeros = tf.zeros((0, columns), self.dtype).numpy()
        return self.draft.editor.constant(f"{name}/nothing", zeros, self.dtype, self.machine[0].host)


def _rows(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([tf.shape(part, tf.int64)[0] for part in parts])
