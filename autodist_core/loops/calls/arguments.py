"""The arguments of one call of a marked function: batches, whole tensors, and plain Python.

In: the arguments as a user passes them, in any structure. Out: an `Arguments` value, with flat arrays for the session
and a key. Calls of equal keys can use one captured step. ::

    step(images, labels, 0.1, training=True)

    images, labels       arrays: batches, split along their first axis
    0.1                  a Python number: a part of the key, as with tf.function
    tf.constant(0.1)     a tensor without axes: the same on every replica
    training=True        a part of the key

An array that has axes and is no batch, such as weights of classes, is named by the decorator: `function(whole=...)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.errors import CaptureError
from autodist_core.runtime.batch_slices import Each
from autodist_core.runtime.composites import COMPOSITE, arrays_of, kind_of, spec_of
from autodist_core.seams.table import PER_REPLICA
from autodist_core.step.same import Same


@dataclass(frozen=True)
class TensorAt:
    """The place of an array among the arguments.

    >>> Reader(lambda x, rate: None).parse((np.zeros((4, 2)), 0.1), {}).structure
    {'args': (TensorAt(index=0), 0.1), 'kwargs': {}}
    """

    index: int


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call, with places for the arrays, and the tensors that are in these places.

    >>> call = Reader(lambda x, weights: None, whole=["weights"]).read((np.zeros((4, 2)), np.ones(3)), {})
    >>> call.total, call.whole, [array.shape.as_list() for array in call.arrays]
    (4, (False, True), [[4, 2], [3]])
    >>> parsed = Reader(lambda x, rate: None).parse((np.zeros((4, 2)), 0.1), {})
    >>> parsed.names, parsed.with_tensors(["a tensor"])
    (('x',), (('a tensor', 0.1), {}))
    """

    structure: Any
    """Positional and keyword arguments, with a `TensorAt` in place of each tensor."""
    tensors: tuple[tuple[Any, ...], ...]
    """For each slot the tensor, which may be ragged or sparse, or the tensors of all replicas."""
    names: tuple[str, ...]
    """For each slot, the parameter to which it belongs."""
    specs: tuple[Any, ...]
    whole: tuple[bool, ...]
    """For each slot, whether every replica gets all of it."""
    each: tuple[bool, ...]
    """For each slot, whether every replica has a tensor of its own."""
    signature: Hashable
    """Equal for calls that differ in the arrays' values and sizes only."""
    arrays: tuple[Any, ...] = ()
    """What a session takes; a ragged or sparse tensor has several. Empty until the places are filled."""
    total: int = 0
    """The number of examples."""

    def with_tensors(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and the keyword arguments, with these tensors in the slots."""
        filled = tf.nest.map_structure(
            lambda leaf: tensors[leaf.index] if isinstance(leaf, TensorAt) else leaf, self.structure
        )
        return filled["args"], filled["kwargs"]


class Reader:
    """Reads the arguments of a function.

    >>> read = Reader(lambda x, rate, training=False: None).read
    >>> call = read((np.zeros((4, 2)), 0.1), {})
    >>> call.total, call.specs
    (4, (TensorSpec(shape=(4, 2), dtype=tf.float64, name=None),))
    >>> call.signature == read((np.ones((8, 2)), 0.1), {"training": False}).signature
    True
    """

    def __init__(self, function: Callable[..., Any], whole: Collection[str] = (), split: bool = True) -> None:
        self._name = getattr(function, "__name__", type(function).__name__)
        self._signature = _signature(function)
        whole = [whole] if isinstance(whole, str) else whole
        parameters = self._signature.parameters.values()
        self._named = next((each.name for each in parameters if each.kind is each.VAR_KEYWORD), None)
        """The parameter that takes all other keywords, if there is one: `whole` may name these, too."""
        unknown = sorted(set(whole) - set(self._signature.parameters))
        if unknown and self._named is None:
            raise ValueError(
                f"function(whole=...): {self._name} has no parameter {unknown[0]!r}. Its parameters: "
                f"{', '.join(self._signature.parameters) or 'none'}."
            )
        self._whole = frozenset(whole)
        self._split = split
        """Whether arrays are batches that are split; values of each replica are not split in any case."""

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The arguments of one call. A batch that replicas cannot share is refused."""
        parsed = self.parse(args, kwargs)
        return self.fill(parsed, parsed.tensors)

    def parse(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The arguments of one call, whose tensors need not have values yet."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}. It is {self._name}{self._signature}.") from None
        bound.apply_defaults()
        found: list[tuple[str, tuple[Any, ...], bool]] = []
        key: list[Hashable] = []

        def taken(name: str, leaf: Any) -> Any:
            each = isinstance(leaf, PER_REPLICA.get())
            tensors = tuple(map(tf.convert_to_tensor, leaf.values)) if each else self._tensors(name, leaf)
            if not tensors:
                key.append(identity(leaf))
                return leaf
            kinds = {kind_of(spec_of(tensor)) for tensor in tensors}
            if len(kinds) > 1:
                raise CaptureError(
                    f"{self._name}({name}=...): the replicas' values are of different types or ranks: "
                    f"{', '.join(f'{tensor.dtype.name} {tensor.shape}' for tensor in tensors)}."
                )
            key.append((*kinds.pop(), each))
            found.append((name, tensors, each))
            return TensorAt(len(found) - 1)

        for name, value in list(bound.arguments.items()):
            if name == self._named:
                bound.arguments[name] = {
                    key: tf.nest.map_structure(partial(taken, key if key in self._whole else name), value[key])
                    for key in sorted(value)
                }
            else:
                bound.arguments[name] = tf.nest.map_structure(partial(taken, name), value)
        structure = {"args": bound.args, "kwargs": bound.kwargs}
        shape = repr(tf.nest.map_structure(lambda leaf: isinstance(leaf, TensorAt), structure))
        return Arguments(
            structure, tuple(tensors for _, tensors, _ in found), tuple(name for name, _, _ in found),
            tuple(_spec(tensors) if each else spec_of(tensors[0]) for _, tensors, each in found),
            tuple(
                not each and (not self._split or name in self._whole or tensors[0].shape.rank == 0)
                for name, tensors, each in found
            ),
            tuple(each for _, _, each in found), (shape, tuple(key)),
        )

    def fill(self, parsed: Arguments, tensors: Sequence[Sequence[Any]]) -> Arguments:
        """The arguments with these tensors, which have values, in the slots."""
        of_each = [values for values, each in zip(tensors, parsed.each, strict=True) if each]
        rows = self._rows(of_each) if of_each else ()
        arrays = (
            (Each(tuple(values), rows),) if each else arrays_of(values[0])
            for values, each in zip(tensors, parsed.each, strict=True)
        )
        total = sum(rows) if rows else self._total(parsed, tensors)
        return replace(parsed, arrays=tuple(chain.from_iterable(arrays)), total=total)

    def _tensors(self, name: str, leaf: Any) -> tuple[Any, ...]:
        """The leaf as a tensor if it is one, or an array; nothing for plain Python."""
        if isinstance(leaf, COMPOSITE):
            if self._split:
                return (leaf,)
            raise CaptureError(
                f"{self._name}({name}=...): run() takes no {type(leaf).__name__}. Make it dense first (to_tensor, "
                "sparse.to_dense), for instance in the dataset's map, or use AutoDist.function, which splits it."
            )
        if isinstance(leaf, tf.data.Iterator | tf.data.Dataset):
            raise CaptureError(
                f"{self._name}({name}=...): a {type(leaf).__name__} cannot be split over replicas. Pass a batch: "
                f"`for batch in dataset: {self._name}(batch)`, or {self._name}(next(iterator))."
            )
        # A variable is what the function trains or reads, also a Keras variable, which TensorFlow takes for a tensor.
        is_variable = isinstance(leaf, tf.Variable) or (hasattr(leaf, "handle") and hasattr(leaf, "assign"))
        is_array = isinstance(leaf, np.ndarray | np.generic) or tf.is_tensor(leaf)
        return (tf.convert_to_tensor(leaf),) if is_array and not is_variable else ()

    def _rows(self, values: Sequence[Sequence[Any]]) -> tuple[int, ...]:
        """The number of examples of each replica: one, if none of its values has an axis."""
        first = next((each for each in values if each[0].shape.rank), None)
        rows = tuple(1 if first is None else int(tensor.shape[0]) for tensor in first or values[0])
        busy = sum(count > 0 for count in rows)
        if 0 in rows[:busy]:
            raise CaptureError(
                f"{self._name}: replica {rows.index(0)} has no examples, and a later one has. The replicas without "
                "examples must be the last ones."
            )
        return rows

    def _total(self, parsed: Arguments, tensors: Sequence[Sequence[Any]]) -> int:
        sizes = [
            (name, int(values[0].shape[0]))
            for name, values, whole in zip(parsed.names, tensors, parsed.whole, strict=True) if not whole
        ]
        if len({size for _, size in sizes}) > 1:
            raise CaptureError(
                f"the arguments of {self._name} disagree on the number of examples (first axes: "
                f"{', '.join(f'{name} {size}' for name, size in dict.fromkeys(sizes))}). Every batch has one row for "
                "each example. An array that is no batch is named by the decorator: function(whole=['name'])."
            )
        return sizes[0][1] if sizes else 1


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """The parameters of a function. Python does not know those of some that are built in, such as `max`."""
    try:
        return inspect.signature(function)
    except ValueError:
        return inspect.signature(lambda *args, **kwargs: None)


def _spec(tensors: Sequence[Any]) -> tf.TensorSpec:
    """One spec for the replicas' tensors. They have different numbers of examples."""
    shape = tensors[0].shape
    for tensor in tensors[1:]:
        shape = shape.most_specific_common_supertype([tensor.shape])
    return tf.TensorSpec([None, *shape[1:]] if shape.rank else shape, tensors[0].dtype)


def identity(leaf: Any) -> Hashable:
    """A leaf as a part of a key: its value if it can be compared, else the object.

    >>> identity(0.0) == identity(-0.0), identity(float("nan")) == identity(float("nan")), identity([]) == identity([])
    (False, True, False)
    """
    if isinstance(leaf, float | complex):
        # As text: 0.0 and -0.0 are equal, and are other numbers; nan is not equal, and is the same number.
        return type(leaf), repr(leaf)
    if isinstance(leaf, bool | int | str | bytes | None | tf.DType):
        return type(leaf), leaf
    return Same(leaf)
