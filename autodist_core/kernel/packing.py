"""Packing: small tensors that go from one machine to another travel as one vector.

In: tensors on one device. Out: one vector there, and the tensors again on the other device. For two biases and a large
kernel::

    kernel (1 MiB)    travels alone
    bias a, bias b    packed = ConcatV2(bias a, bias b)  ->  SplitV(packed)

The rows of several sparse gradients travel as two vectors: one of integers, the numbers of rows and then the indices,
and one of values.

A message takes its time however short it is. So small tensors are put one behind the other, up to a size: a full vector
travels while the next one is filled. A large tensor takes the time of its bytes anyway, and is not copied.
"""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import TypeVar

import numpy as np
import tensorflow as tf

from autodist_core.kernel.draft import Draft, Rows
from autodist_core.kernel.placement.devices import host_of
from autodist_core.step import naming
from autodist_core.step.graph_check import in_order

ALONE_BYTES = 1 << 16
"""A tensor of more bytes travels alone."""
VECTOR_BYTES = 1 << 18
"""The most bytes of a vector of small tensors."""

T = TypeVar("T")


def apart(devices: Iterable[str]) -> bool:
    """Whether devices are on several machines. Within one machine, packing would only copy values once more.

    >>> apart(["/job:run/task:0/device:CPU:0", "/job:run/task:1/device:CPU:0"])
    True
    >>> apart(["/device:CPU:0", "/device:GPU:1"])
    False
    """
    return len({host_of(device) for device in devices}) > 1


def filled(sizes: Iterable[int], limit: int) -> list[list[int]]:
    """Divide things of some sizes into groups that follow each other; return the positions of each group's things.

    A group has at most `limit`, unless it has one thing only.

    >>> filled([2, 4, 3, 9, 1], limit=8)
    [[0, 1], [2], [3], [4]]
    """
    groups: list[list[int]] = []
    room = 0
    for position, size in enumerate(sizes):
        if size > room or not groups:
            groups.append([])
            room = limit
        groups[-1].append(position)
        room -= size
    return groups


def bundles(things: Sequence[T], spec_of: Callable[[T], tf.TensorSpec]) -> list[list[T]]:
    """Divide things into those that travel together, and those that travel alone. All of a bundle have one type.

    >>> bundles([3, 40_000, 4, 5], lambda size: tf.TensorSpec((size,), tf.float32))
    [[40000], [3, 4, 5]]
    """
    alone: list[list[T]] = []
    small: dict[tf.DType, list[T]] = {}
    for thing in things:
        spec = spec_of(thing)
        if spec.shape.is_fully_defined() and _size(spec) <= ALONE_BYTES:
            small.setdefault(spec.dtype, []).append(thing)
        else:
            alone.append([thing])
    together = [
        [members[position] for position in group]
        for members in small.values()
        for group in filled((_size(spec_of(member)) for member in members), VECTOR_BYTES)
    ]
    return alone + together


def _size(spec: tf.TensorSpec) -> int:
    return prod(spec.shape) * spec.dtype.size


def packed(draft: Draft, name: str, values: Sequence[str], dtype: tf.DType, device: str) -> str:
    """Return tensors of one type as one vector. A single tensor is returned as it is.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> values = [draft.editor.constant(f"value{index}", [[1.0, 2.0]], tf.float32) for index in range(2)]
    >>> packed(draft, "both", values, tf.float32, ""), packed(draft, "one", values[:1], tf.float32, "")
    ('both', 'value0')
    """
    if len(values) == 1:
        return values[0]
    flat = draft.editor.constant(f"{name}/flat", [-1], tf.int32, device)
    rows = [
        draft.editor.add("Reshape", f"{name}/row{index}", [value, flat], device, T=dtype, Tshape=tf.int32)
        for index, value in enumerate(values)
    ]
    return draft.join(name, rows, dtype, device)


def unpacked(
    draft: Draft, name: str, vector: str, shapes: Sequence[tuple[int, ...]], dtype: tf.DType, device: str
) -> list[str]:
    """Return the tensors of these shapes that `packed` has put into a vector.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> _ = draft.editor.constant("both", [1.0, 2.0, 3.0, 4.0, 5.0], tf.float32)
    >>> unpacked(draft, "parts", "both", [(2, 2), (1,)], tf.float32, "")
    ['parts/0', 'parts/1']
    """
    if len(shapes) == 1:
        return [vector]
    parts = cut(draft, name, vector, [prod(shape) for shape in shapes], dtype, device)
    return [
        reshaped(draft, f"{name}/{index}", part, shape, dtype, device)
        for index, (part, shape) in enumerate(zip(parts, shapes, strict=True))
    ]


def reshaped(draft: Draft, name: str, source: str, shape: tuple[int, ...], dtype: tf.DType, device: str) -> str:
    """Return a tensor in another shape.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> reshaped(draft, "flat", draft.editor.constant("value", [[1.0]], tf.float32), (1,), tf.float32, "")
    'flat'
    """
    wanted = draft.editor.constant(f"{name}/shape", np.array(shape, np.int32), tf.int32, device)
    return draft.editor.add("Reshape", name, [source, wanted], device, T=dtype, Tshape=tf.int32)


def cut(
    draft: Draft, name: str, vector: str, sizes: Sequence[int], dtype: tf.DType, device: str, along: int = 0
) -> list[str]:
    """Return consecutive parts of a vector, of these sizes; of a matrix, along one axis. A single part is the vector.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> _ = draft.editor.constant("both", [1.0, 2.0, 3.0], tf.float32)
    >>> cut(draft, "parts", "both", [2, 1], tf.float32, "")
    ['parts', 'parts:1']
    """
    if len(sizes) == 1:
        return [vector]
    lengths = draft.editor.constant(f"{name}/lengths", np.array(sizes, np.int32), tf.int32, device)
    axis = draft.editor.constant(f"{name}/axis", along, tf.int32, device)
    draft.editor.add("SplitV", name, [vector, lengths, axis], device, T=dtype, Tlen=tf.int32, num_split=len(sizes))
    return [naming.tensor(name, index) for index in range(len(sizes))]


def packed_rows(
    draft: Draft, name: str, gradients: Sequence[Rows], types: tuple[tf.DType, tf.DType], host: str
) -> Rows:
    """Return the rows of several sparse gradients as one vector of values and one of integers.

    `types` are those of values and indices.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> for index in range(2):
    ...     _ = draft.editor.constant(f"values{index}", [[1.0, 2.0]], tf.float32)
    ...     _ = draft.editor.constant(f"indices{index}", [7], tf.int32)
    >>> gradients = [Rows(f"values{index}", f"indices{index}") for index in range(2)]
    >>> packed_rows(draft, "both", gradients, (tf.float32, tf.int32), "")
    Rows(values='both/concat', indices='both/concat_1')
    """
    of_values, of_indices = (tf.TensorSpec(None, types[0]), tf.TensorSpec((None,), types[1]))
    specs = {rows.values: of_values for rows in gradients} | {rows.indices: of_indices for rows in gradients}

    def together(*tensors: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        values, indices = tensors[: len(gradients)], tensors[len(gradients) :]
        counts = tf.stack([tf.size(each, types[1]) for each in indices])
        return tf.concat([tf.reshape(each, [-1]) for each in values], 0), tf.concat([counts, *indices], 0)

    return Rows(*draft.editor.trace(name, together, specs, host))


def unpacked_rows(
    draft: Draft, name: str, vectors: Rows, shapes: Sequence[tuple[int, ...]], types: tuple[tf.DType, tf.DType],
    device: str,
) -> list[Rows]:
    """Return the rows that `packed_rows` has put together. `shapes` are those of a row of each gradient.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> draft = example_draft(PS())
    >>> vectors = Rows(draft.editor.constant("values", [1.0, 2.0, 3.0, 4.0, 5.0], tf.float32),
    ...                draft.editor.constant("integers", [2, 1, 7, 8, 9], tf.int32))
    >>> rows = unpacked_rows(draft, "parts", vectors, [(2,), ()], (tf.float32, tf.int32), "")
    >>> rows[1]
    Rows(values='parts/Reshape_1', indices='parts/split:1')
    """
    specs = {vectors.values: tf.TensorSpec((None,), types[0]), vectors.indices: tf.TensorSpec((None,), types[1])}
    count = len(shapes)

    def apart_again(flat: tf.Tensor, integers: tf.Tensor) -> list[tf.Tensor]:
        counts = tf.cast(integers[:count], tf.int64)  # all elements of a vector may be more than a table's rows
        indices = tf.split(integers[count:], counts, num=count)
        widths = tf.constant([prod(shape) for shape in shapes], tf.int64)
        values = [
            tf.reshape(part, tf.concat([counts[index : index + 1], tf.constant(shapes[index], tf.int64)], 0))
            for index, part in enumerate(tf.split(flat, counts * widths, num=count))
        ]
        return [*values, *indices]

    found = draft.editor.trace(name, apart_again, specs, device)
    return [Rows(values, indices) for values, indices in zip(found[:count], found[count:], strict=True)]

def messages_before(draft: Draft) -> dict[str, int]:
    """Return for each node how many messages between machines precede it, on the longest way.

    >>> from autodist_core.kernel.example import example_draft
    >>> from autodist_core.strategy import PS
    >>> set(messages_before(example_draft(PS(), before="Update")).values())
    {0}
    """
    editor, sources = draft.editor, draft.editor.sources()
    level_of: dict[str, int] = {}
    for name in in_order(sources):
        crossing = (level_of[each] + apart([editor[each].device, editor[name].device]) for each in sources[name])
        level_of[name] = max(crossing, default=0)
    return level_of
