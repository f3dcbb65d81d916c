"""Bring the rows of sparse gradients of all machines to each machine, by collectives.

In: the rows of each machine's replicas. Out: the rows of all machines on each machine, in one order. For a table over
two machines, of which one looked up 5 rows and the other one 3::

    lengths    5 and 3 rows           a small collective, which runs as soon as the numbers of the rows are known
    rows       6 and 6, padded        a collective of integers and one of values, for all tables of a type
    results    8 rows                 what was padded is left out

A machine reads nothing but collectives. So its nodes are as many over 2 machines as over 500, and `kernel/units/` can
repeat them. A collective takes equal shapes, and each shape has a collective of its own: TensorFlow keeps what it knows
of one for the whole session. So tensors are padded to one of a few lengths, which all machines find from the longest
one: the key of 5 rows is the collective's and 4, the place of 5 in `LENGTHS`.
"""

from collections.abc import Sequence
from math import prod

import tensorflow as tf

from autodist_core.kernel import packing
from autodist_core.kernel.draft import Draft, Rows
from autodist_core.kernel.passes.synchronizer.reduction import merged, name_of, of_equal_types, of_team
from autodist_core.kernel.passes.synchronizer.sums import instance_key
from autodist_core.kernel.placement.placement import Owner, Replica
from autodist_core.step.graph_item import ALIKE, UNIQUE, Gradient

LENGTHS = (1, 2, 3, *(part << shift for shift in range(29) for part in (4, 5, 6, 7)))
"""The lengths of what travels: each is at most a quarter longer than the one before."""
KEYS = 1 << 7
"""The instance keys that a gathering has: one for each length."""
_TRAVEL = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
"""The types that TensorFlow's collective takes; others travel as float32, which has all of their values."""
_MACHINES = 1 << 20
"""Added to the number of machines in the key of a group, since the group of the replicas may be on other devices."""


def machines_of(draft: Draft) -> int:
    """Return the number of all machines with replicas, also of those that others stand for.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> machines_of(example_draft(AllReduce()))
    1
    """
    return len({replica.host for replica in draft.everyone})


def gathered(tensor: tf.Tensor, machines: int, key: int | tf.Tensor) -> tf.Tensor:
    """Return the tensors of all machines one behind the other along the first axis. They have one shape.

    >>> graph = tf.Graph()
    >>> with graph.as_default():
    ...     gathered(tf.constant([1, 2]), machines=2, key=7).op.type
    'CollectiveGatherV2'
    """
    travels = tensor if tensor.dtype in _TRAVEL else tf.cast(tensor, tf.float32)
    found = tf.raw_ops.CollectiveGatherV2(
        input=travels, group_size=machines, group_key=_MACHINES + machines, instance_key=key,
        ordering_token=[], communication_hint="auto", timeout_seconds=0.0, is_stateless=False,
    )
    return tf.cast(found, tensor.dtype)


def places_of(lengths: tf.Tensor) -> tf.Tensor:
    """Return for each length the place in `LENGTHS` of the smallest that is not shorter.

    >>> places_of(tf.constant([5, 9, 0], tf.int64)).numpy().tolist(), LENGTHS[4], LENGTHS[8]
    ([4, 8, 0], 5, 10)
    """
    return tf.searchsorted(tf.constant(LENGTHS, tf.int64), lengths)


def gather_rows(draft: Draft, owners: Sequence[Owner], gradients: Sequence[Gradient]) -> None:
    """Fill `draft.reduced` for sparse gradients and owners on several machines.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import AllReduce
    >>> draft = example_draft(AllReduce(), before="AllReduceSynchronizer")
    >>> gather_rows(draft, draft.placement.owners, [])
    >>> draft.collectives
    0
    """
    for members in of_equal_types(draft, gradients):
        for machine, here in draft.placement.at_each_host(owners):
            found = _gathered(draft, members, machine, here[0])
            for gradient, rows in zip(members, found, strict=True):
                for owner in here:
                    draft.reduced[*gradient.key, owner.name] = rows
        draft.collectives += 3


def _gathered(draft: Draft, gradients: Sequence[Gradient], machine: Sequence[Replica], owner: Owner) -> list[Rows]:
    """Return the rows of all machines on one machine."""
    lead = machine[0]
    values, indices = draft.types_of(gradients[0])
    shapes = [draft.step.variables[gradient.variable].shape[1:] for gradient in gradients]
    name = f"{name_of(gradients[0], owner)}/gathered"
    rows = [_own(draft, gradient, machine, owner) for gradient in gradients]
    vectors = packing.packed_rows(draft, f"{name}/packed", rows, (values, indices), lead.host)
    busy = len({replica.host for replica in draft.slicing.of_all[0]})
    keys = [instance_key(draft, draft.collectives + number, KEYS) for number in range(3)]
    specs = {vectors.values: tf.TensorSpec((None,), values), vectors.indices: tf.TensorSpec((None,), indices)}

    def everyone(values: tf.Tensor, integers: tf.Tensor) -> list[tf.Tensor]:
        found: list[tf.Tensor] = []
        of_tables = _of_all(values, integers, [prod(shape) for shape in shapes], machines_of(draft), keys)
        for gradient, shape, flat, rows in zip(gradients, shapes, *of_tables, strict=True):
            found += _reduced(gradient, tf.reshape(flat, [-1, *shape]), rows, busy)
        return found

    results = draft.editor.trace(name, everyone, specs, lead.host)
    return [Rows(*results[index : index + 2]) for index in range(0, len(results), 2)]


def _own(draft: Draft, gradient: Gradient, machine: Sequence[Replica], owner: Owner) -> Rows:
    """Return the rows of a machine's replicas; none if none of them has examples."""
    active = [replica for replica in machine if replica.index in draft.active]
    if active:
        return of_team(draft, gradient, owner, active)
    name, (values, indices) = f"{name_of(gradient, owner)}/nothing", draft.types_of(gradient)
    shape = draft.step.variables[gradient.variable].shape[1:]
    return Rows(
        draft.editor.constant(f"{name}/values", tf.zeros((0, *shape)).numpy(), values, machine[0].host),
        draft.editor.constant(f"{name}/indices", [], indices, machine[0].host),
    )


def _reduced(gradient: Gradient, values: tf.Tensor, indices: tf.Tensor, busy: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the rows of one gradient as the update takes them; so many machines have examples."""
    if gradient.rows == ALIKE:
        apart = tf.concat([[busy, -1], values.shape[1:]], 0)
        return tf.reduce_sum(tf.reshape(values, apart), 0), tf.reshape(indices, (busy, -1))[0]
    return merged(values, indices) if gradient.rows == UNIQUE else (values, indices)


def _of_all(
    values: tf.Tensor, integers: tf.Tensor, of_row: Sequence[int], machines: int, keys: Sequence[int]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Return the values, flat, and the indices of each table, of all machines one behind the other.

    `values` and `integers` are those of one machine, and `of_row` is how many values a row of each table has.
    """
    # Numbers of elements are 64 bits wide: those of all machines may be more than the rows of any table.
    tables, widths = len(of_row), tf.constant(of_row, tf.int64)
    rows = tf.cast(integers[:tables], tf.int64)
    own = tf.stack([tf.reduce_sum(rows * widths), tf.size(integers, tf.int64)])
    most = tf.reduce_max(tf.reshape(gathered(own, machines, keys[0]), (-1, 2)), 0)
    places = places_of(most)
    lengths = tf.gather(tf.constant(LENGTHS, tf.int64), places)
    all_integers = gathered(tf.pad(integers, [[0, lengths[1] - own[1]]]), machines, keys[1] + places[1])
    all_values = gathered(tf.pad(values, [[0, lengths[0] - own[0]]]), machines, keys[2] + places[0])
    counts = tf.ensure_shape(tf.reshape(all_integers, (machines, -1))[:, :tables], (None, tables))
    counts = tf.cast(counts, tf.int64)
    machine = tf.range(machines, dtype=tf.int64)[:, None] * lengths
    return (_apart(all_values, counts * widths, machine[:, :1]), _apart(all_integers, counts, machine[:, 1:] + tables))


def _apart(flat: tf.Tensor, counts: tf.Tensor, begin: tf.Tensor) -> list[tf.Tensor]:
    """Return what each table has in a vector, in which the machines are one behind the other.

    `counts` are the elements of each table on each machine, and `begin` is where the machines begin.

    >>> flat, counts = tf.constant([1, 2, 3, 0, 4, 5, 6, 7]), tf.constant([[1, 2], [3, 1]], tf.int64)
    >>> [part.numpy().tolist() for part in _apart(flat, counts, tf.constant([[0], [4]], tf.int64))]
    [[1, 4, 5, 6], [2, 3, 7]]
    """
    ends = tf.cumsum(counts, 1) + begin
    starts = ends - counts
    return [
        tf.gather(flat, tf.raw_ops.RaggedRange(
            starts=starts[:, table], limits=ends[:, table], deltas=tf.ones((), tf.int64)
        ).rt_dense_values)
        for table in range(counts.shape[1])
    ]  # fmt: skip
