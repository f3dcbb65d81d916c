"""LookupsTogether: the rows that a replica looks up in several tables of one server travel together.

In: the finished order of a step. Out: one vector of numbers of rows and one of values, for each replica and server. For
two tables on a server::

    replica1/user, replica1/item    ->    replica1/lookups/0/asked   the numbers of the rows of both, on the replica
                                          replica1/lookups/0/cut     the same apart, on the server
                                          replica1/lookups/0/found   the rows of both, on the server
                                          replica1/lookups/0/rows    the same apart, on the replica

A lookup waits for the others of its vector. So only such lookups travel together that as many messages precede, and
that all follow from the inputs alone, or all from variables too. Large rows travel alone, as large tensors do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import tensorflow as tf

from autodist_core.kernel import packing
from autodist_core.kernel.analysis.shapes import partial_shapes
from autodist_core.kernel.draft import Draft
from autodist_core.kernel.kernel import Kernel
from autodist_core.kernel.passes.replicator import table_of_lookup
from autodist_core.kernel.placement.placement import Replica
from autodist_core.step import naming
from autodist_core.step.index import output_type

SMALL_BYTES = 1 << 9
"""The most bytes that a lookup brings for each example. A length that is not known counts as one."""


@dataclass(frozen=True)
class _Lookup:
    """A lookup of compute in a table that is on a server only."""

    name: str
    indices: str
    index_type: tf.DType
    row: tuple[int, ...]
    row_type: tf.DType
    follows_from_variables: bool


class LookupsTogether(Kernel):
    """Packs what replicas ask servers for, and what servers answer.

    >>> from autodist_core.kernel.example import example_change
    >>> from autodist_core.strategy import PS
    >>> example_change(PS(), "LookupsTogether", "ConcatV2")
    ''
    """

    reads = ("compute",)
    provides = ("outputs",)

    def apply(self, draft: Draft) -> None:
        """Replace the messages of lookups in several tables of a server by one each way."""
        if not draft.placement.remote_rows:
            return
        lookups, level_of = _lookups(draft), packing.messages_before(draft)
        replicas, editor = draft.active_replicas, draft.editor
        # Each replica asks each server in the same way, also a server on its own machine: so machines stay alike.
        groups: dict[tuple[object, ...], list[_Lookup]] = {}
        for lookup in lookups:
            copies = [replica.copy_of(lookup.name) for replica in replicas]
            devices = {editor[name].device for name in copies}
            if len(devices) == 1 and packing.apart([*devices, *(replica.device for replica in replicas)]):
                levels = tuple(level_of[name] for name in copies)
                kind = *devices, levels, lookup.follows_from_variables, lookup.index_type, lookup.row_type
                groups.setdefault(kind, []).append(lookup)
        together = [group for group in groups.values() if len(group) > 1]
        readers, answers = list(editor), dict[str, str]()
        for replica in replicas:
            for number, group in enumerate(together):
                answers |= _pack(draft, replica, f"{replica.prefix}/lookups/{number}", group)
        for node in readers:
            # What a node does for a server has another name.
            read, parts = map(naming.node_of, node.input), node.name.split("/")
            own = {name: answers[name] for name in read if name in answers and name.partition("/")[0] in parts}
            if own:
                editor.read_instead(node.name, own)
        draft.outputs[:] = [answers.get(naming.canonical(name), name) for name in draft.outputs]


def _lookups(draft: Draft) -> list[_Lookup]:
    """Return the lookups whose rows are small."""
    step, shapes, found = draft.step, partial_shapes(draft.step), []
    for name in step.in_order(draft.compute):
        table = table_of_lookup(draft, name)
        if table is None or naming.branch_of(step.nodes[name]):
            continue
        indices, shape = step.nodes[name].input[1], shapes[name]
        row, row_type = tuple(step.variables[table].shape[1:]), output_type(step, name)
        known = [size for size in (shape[1:] if shape.rank else row) if size is not None]
        if prod(known) * row_type.size <= SMALL_BYTES:
            late = not step.touches.keys().isdisjoint(step.cone([naming.node_of(indices)]))
            found.append(_Lookup(name, indices, output_type(step, indices), row, row_type, late))
    return found


def _pack(draft: Draft, replica: Replica, label: str, lookups: Sequence[_Lookup]) -> dict[str, str]:
    """Let the lookups of a replica travel together; return what takes the place of each."""
    editor, first = draft.editor, lookups[0]
    copies = [replica.copy_of(lookup.name) for lookup in lookups]
    server = editor[copies[0]].device
    sources = [editor[name].input[1] for name in copies]
    # Two tables that are asked for the same rows, as of wide and deep models, are asked once.
    different = list(dict.fromkeys(sources))
    places = [different.index(source) for source in sources]
    count = len(different)
    widths = [prod(lookup.row) for lookup in lookups]

    def asked(*indices: tf.Tensor) -> tf.Tensor:
        counts = tf.stack([tf.size(each, first.index_type) for each in indices])
        return tf.concat([counts, *(tf.reshape(each, [-1]) for each in indices)], 0)

    def cut(integers: tf.Tensor) -> list[tf.Tensor]:
        return tf.split(integers[count:], integers[:count], num=count)

    def found(*rows: tf.Tensor) -> tf.Tensor:
        return tf.concat([tf.reshape(each, [-1]) for each in rows], 0)

    def apart(values: tf.Tensor, *indices: tf.Tensor) -> list[tf.Tensor]:
        lengths = tf.stack([tf.size(indices[place]) * width for place, width in zip(places, widths, strict=True)])
        parts = tf.split(values, lengths, num=len(places))
        shapes = [
            tf.concat([tf.shape(indices[place]), tf.constant(lookup.row, tf.int32)], 0)
            for place, lookup in zip(places, lookups, strict=True)
        ]
        return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]

    of_indices = dict.fromkeys(different, tf.TensorSpec(None, first.index_type))
    vector = tf.TensorSpec((None,), first.index_type)
    (question,) = editor.trace(f"{label}/asked", asked, of_indices, replica.host)
    wanted = editor.trace(f"{label}/cut", cut, {question: vector}, server)
    for name, place in zip(copies, places, strict=True):
        table, _, *rest = editor[name].input
        editor.change(name, inputs=[table, wanted[place], *rest])
    of_rows = dict.fromkeys(copies, tf.TensorSpec(None, first.row_type))
    (answer,) = editor.trace(f"{label}/found", found, of_rows, server)
    values = {answer: tf.TensorSpec((None,), first.row_type)}
    return dict(zip(copies, editor.trace(f"{label}/rows", apart, values | of_indices, replica.device), strict=True))

