"""Bring the factors of gradients of all machines to each machine, and multiply there.

In: the factors of gradients that are products with a row for each example (`analysis/factored.py`), on each replica.
Out: the reduced gradients on every machine, `draft.reduced`. For a kernel over two machines with 64 examples each::

    all_reduce   MatMul(x', d) on each machine, and a sum      512 x 512 numbers travel
    factors      x and d of all machines on each machine       64 x (512 + 512) numbers travel
                 MatMul([x0, x1]', [d0, d1]) on each machine

The product of all rows is the sum of the machines' products. Rows of zeros add nothing to it. So a machine with fewer
examples pads its rows, and one without examples sends zeros only. The numbers of rows follow from the batch, and not
from the factors. So the inputs of the first layers travel while the forward pass still runs.

Factors travel in buckets, in the order in which they become ready. A factor of several products, such as the input of
several layers, travels once. As many buckets are under way as gradients have, for the same reasons (`buckets.py`).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import tensorflow as tf

from autodist_core.kernel import packing
from autodist_core.kernel.draft import Draft, Rows
from autodist_core.kernel.passes.synchronizer.rows import KEYS, LENGTHS, gathered, machines_of, places_of
from autodist_core.kernel.passes.synchronizer.sums import instance_key
from autodist_core.kernel.placement.placement import Owner, Replica
from autodist_core.step import naming
from autodist_core.step.graph_item import Gradient
from autodist_core.step.grouping import grouped

_COLUMNS = 1 << 12
"""The most columns of a bucket, unless it has one factor only. With 64 rows of float32 these are 1 MiB."""
Bucket = dict[str, int]
"""Captured factors that travel together, each with its number of columns."""


def gather_factors(draft: Draft, owners: Sequence[Owner], gradients: Sequence[Gradient]) -> None:
    """Fill `draft.reduced` for gradients whose factors travel, for owners on several machines.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce(), before="AllReduceSynchronizer")
    >>> gather_factors(draft, draft.placement.owners, [])
    >>> draft.collectives
    0
    """
    together = grouped(gradients, lambda each: (each.occurrence, draft.type_of(each)))
    for (occurrence, dtype), members in together.items():
        buckets = _buckets(draft, members)
        keys = [instance_key(draft, draft.collectives + number, KEYS) for number in range(len(buckets) + 1)]
        for machine, here in draft.placement.at_each_host(owners):
            sender = _Sender(draft, machine, f"factors/{machine[0].prefix}/{occurrence}/{dtype.name}", dtype)
            rows_of_all = sender.rows_of_all(buckets, keys)
            for gradient in members:
                product = sender.product(gradient, rows_of_all)
                for owner in here:
                    draft.reduced[*gradient.key, owner.name] = Rows(product)
        draft.collectives += len(keys)
        draft.buckets += len(buckets)


def _buckets(draft: Draft, gradients: Iterable[Gradient]) -> list[Bucket]:
    """Return the buckets of these gradients' factors, in the order in which they become ready."""
    widths: dict[str, int] = {}
    for gradient in gradients:
        widths |= dict(zip(_factors(draft, gradient), draft.step.variables[gradient.variable].shape, strict=True))
    order = sorted(widths, key=lambda factor: draft.step.position[naming.node_of(factor)])
    groups = packing.filled([widths[factor] for factor in order], _COLUMNS)
    return [{order[at]: widths[order[at]] for at in group} for group in groups]


def _factors(draft: Draft, gradient: Gradient) -> tuple[str, str]:
    """Return the captured factors of a gradient: the inputs of the layer, and the gradients of its outputs."""
    product = draft.products.gradients[gradient.key]
    return naming.canonical(product.left), naming.canonical(product.right)


@dataclass(frozen=True)
class _Sender:
    """One machine: what it sends, and the products that it computes of the rows of all machines."""

    draft: Draft
    machine: Sequence[Replica]
    name: str
    dtype: tf.DType

    def rows_of_all(self, buckets: Sequence[Bucket], keys: Sequence[int]) -> dict[str, str]:
        """Return for each captured factor a tensor with the rows of all machines."""
        length = {} if self._known_length else self._length(keys[0])
        machines = machines_of(self.draft)
        started: list[str] = []
        found: dict[str, str] = {}
        for number, (bucket, key) in enumerate(zip(buckets, keys[1:], strict=True)):
            collective, *parts = self._gathered(f"{self.name}/bucket{number}", bucket, length, key)
            if number > machines:
                self.draft.editor.control(collective, started[-machines - 1])
            started.append(collective)
            found |= dict(zip(bucket, parts, strict=True))
        return found

    def product(self, gradient: Gradient, rows_of_all: dict[str, str]) -> str:
        """Return a reduced gradient."""
        left, right = (rows_of_all[factor] for factor in _factors(self.draft, gradient))
        name = f"{self.name}/{naming.safe(gradient.variable)}"
        return self.draft.editor.add(
            "MatMul", name, [left, right], self.machine[0].host, T=self.dtype, transpose_a=True, transpose_b=False
        )

    @cached_property
    def _known_length(self) -> int:
        """The examples of the machine that has the most of them; 0 in a graph for batches of any size."""
        replicas, sizes = self.draft.slicing.of_all
        examples = Counter[str]()
        for replica, size in zip(replicas, sizes, strict=bool(sizes)):
            examples[replica.host] += size
        return max(examples.values(), default=0)

    def _length(self, key: int) -> dict[str, tf.TensorSpec]:
        """Return the tensors with the rows to which every machine pads, and with the place of this length in `LENGTHS`.

        Machines tell each other how many rows their inputs have. A factor with a row for each example has as many as
        one of the inputs. In `run()`, a replica may have inputs of several lengths.
        """
        step, replicas = self.draft.step, self._active
        specs = {
            replica.copy_of(name): tf.TensorSpec((None, *shape[1:]), tf.as_dtype(step.nodes[name].attr["dtype"].type))
            for replica in replicas for name, shape in step.rows.items() if replica.copy_of(name) in self.draft.editor
        }

        def longest(*inputs: tf.Tensor) -> list[tf.Tensor]:
            own = tf.zeros((1,), tf.int64)
            if inputs:
                lengths = tf.stack([tf.shape(each, tf.int64)[0] for each in inputs])
                own = tf.reduce_sum(tf.reduce_max(tf.reshape(lengths, (len(replicas), -1)), 1), 0, True)
            most = tf.reduce_max(gathered(own, machines_of(self.draft), key), 0, True)
            (place,) = tf.unstack(places_of(most), 1)
            return [tf.gather(tf.constant(LENGTHS, tf.int64), place), place]

        length, place = self.draft.editor.trace(f"{self.name}/length", longest, specs, self.machine[0].host)
        return {length: tf.TensorSpec((), tf.int64), place: tf.TensorSpec((), tf.int32)}

    def _gathered(self, name: str, bucket: Bucket, length: dict[str, tf.TensorSpec], key: int) -> list[str]:
        """Return the node of the collective of a bucket, and for each factor a tensor with the rows of all machines."""
        own: dict[str, tf.TensorSpec] = {}
        for replica in self._active:
            rows = self.draft.slicing.size_of(replica)
            own |= {replica.copy_of(each): tf.TensorSpec((rows, width), self.dtype) for each, width in bucket.items()}
        widths = list(bucket.values())

        def gather(*inputs: tf.Tensor) -> list[tf.Tensor]:
            parts, (rows, place) = inputs[: len(own)], inputs[len(own) :] or (self._known_length, 0)
            columns = [_padded(parts[at :: len(widths)], rows, width, self.dtype) for at, width in enumerate(widths)]
            everyone = gathered(tf.concat(columns, 1), machines_of(self.draft), key + place)
            return [everyone, *tf.split(tf.ensure_shape(everyone, (None, sum(widths))), widths, 1)]

        collective, *parts = self.draft.editor.trace(name, gather, {**own, **length}, self.machine[0].host)
        return [naming.node_of(collective), *parts]

    @cached_property
    def _active(self) -> list[Replica]:
        """The machine's replicas that have examples."""
        return [replica for replica in self.machine if replica.index in self.draft.active]


def _padded(parts: Sequence[tf.Tensor], rows: int | tf.Tensor, width: int, dtype: tf.DType) -> tf.Tensor:
    """Return the rows of a machine's replicas one behind the other, and rows of zeros behind them.

    >>> _padded([tf.ones((1, 2)), tf.ones((2, 2))], 4, 2, tf.float32).numpy().tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
    """
    missing = rows - sum(each.shape[0] or tf.shape(each, tf.int64)[0] for each in parts)
    there = isinstance(missing, int) and missing == 0
    return tf.concat([*parts, *([] if there else [tf.zeros((missing, width), dtype)])], 0)
