"""Check what the methods of a strategy and of a replica context receive, before TensorFlow does.

In: the name of a method, and one of its arguments. Out: the argument as the method takes it, or a `ValueError` that
names the method, what it received, what it takes and what to write.

>>> operation("reduce", tf.distribute.ReduceOp.SUM), operation("all_reduce", "mean"), axes("reduce", (0, -1), 2)
('SUM', 'MEAN', (0, 1))
>>> operation("reduce", "max")
Traceback (most recent call last):
ValueError: reduce: the operation is tf.distribute.ReduceOp.SUM or MEAN. Received: 'max'. ...
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from autodist_core.errors import amount
from autodist_core.seams.table import PER_REPLICA


def operation(method: str, received: Any) -> str:
    """The name of a reduction. The module has examples."""
    name = str(getattr(received, "name", received)).upper()
    if name not in ("SUM", "MEAN"):
        raise ValueError(
            f"{method}: the operation is tf.distribute.ReduceOp.SUM or MEAN. Received: {received!r}. For another one, "
            "such as the largest value, write it for the tensors of strategy.experimental_local_results(value), or for "
            "those that all_gather(value, axis) gives inside run()."
        )
    return name


def parts(method: str, value: Any, replicas: int) -> tuple[Any, ...] | None:
    """The tensors of all replicas; None for what is no value of each replica.

    >>> parts("reduce", 1.0, 2) is None
    True
    >>> three = PER_REPLICA.get()((tf.constant(1.0),) * 3)
    >>> parts("reduce", three, 2)
    Traceback (most recent call last):
    ValueError: reduce: received values of 3 replicas, and this strategy has 2. Pass what its own run() returned, ...
    """
    if isinstance(value, PER_REPLICA.get()):
        if len(value.values) != replicas:
            raise ValueError(
                f"{method}: received values of {amount(len(value.values), 'replica')}, and this strategy has "
                f"{replicas}. Pass what its own run() returned, or an element of a dataset that it distributes; values "
                "of another strategy are for that strategy's methods."
            )
        return tuple(value.values)
    if isinstance(value, tf.distribute.DistributedValues):
        raise ValueError(
            f"{method}: received a {type(value).__name__} of another tf.distribute strategy. Pass what this strategy's "
            "run() returned, or the value as an array: value.numpy()."
        )
    return None


def tensor(method: str, value: Any, numeric: bool = False) -> Any:
    """A value as a tensor; if it must be `numeric`, strings and booleans are refused.

    >>> tensor("reduce", 2).dtype.name
    'int32'
    >>> tensor("all_reduce", tf.constant(True), numeric=True)
    Traceback (most recent call last):
    ValueError: all_reduce takes numbers. Received a bool of shape (). Convert it first: tf.cast(value, tf.int32).
    """
    dense = {tf.RaggedTensor: "value.to_tensor()", tf.SparseTensor: "tf.sparse.to_dense(value)"}.get(type(value))
    if dense is not None:
        raise ValueError(f"{method} takes dense tensors. Received a {type(value).__name__}. Pass {dense}.")
    if isinstance(value, PER_REPLICA.get()):
        raise ValueError(
            f"{method}: received a value of each replica that was made outside of run(). Pass it as an argument: "
            "run(fn, args=(value,)); each replica then has its own."
        )
    try:
        found = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{method} takes tensors. Received: {_shortened(value)}.") from error
    if numeric and not (found.dtype.is_floating or found.dtype.is_integer or found.dtype.is_complex):
        remedy = "Convert it first: tf.cast(value, tf.int32)" if found.dtype == tf.bool else "Gather it along an axis"
        raise ValueError(f"{method} takes numbers. Received a {found.dtype.name} of shape {found.shape}. {remedy}.")
    return found


def axes(method: str, received: Any, rank: int | None) -> tuple[int, ...]:
    """Axes of a tensor of this rank, counted from its first one; as they are, if the rank is not known.

    >>> axes("reduce", 2, 1)
    Traceback (most recent call last):
    ValueError: reduce(axis=2): the values have 1 axis. axis=None reduces over the replicas only.
    >>> axes("reduce", "x", 1)
    Traceback (most recent call last):
    ValueError: reduce(axis='x'): an axis is a whole number, and several are a tuple of them.
    """
    try:
        numbers = tuple(map(operator.index, received if isinstance(received, tuple | list) else (received,)))
    except TypeError:
        raise ValueError(
            f"{method}(axis={received!r}): an axis is a whole number, and several are a tuple of them."
        ) from None
    if rank is None:
        return numbers
    if not all(-rank <= number < rank for number in numbers):
        remedy = "axis=None reduces over the replicas only" if method == "reduce" else "value[tf.newaxis] has one more"
        count = amount(rank or "no", "axis", "axes")
        raise ValueError(f"{method}(axis={received!r}): the values have {count}. {remedy}.")
    return tuple(number % rank for number in numbers)


def axis(method: str, received: Any, rank: int | None) -> int:
    """The axis along which values are concatenated.

    >>> axis("gather", (0, 1), 2)
    Traceback (most recent call last):
    ValueError: gather(axis=(0, 1)): values are concatenated along one axis, a whole number.
    """
    if isinstance(received, tuple | list) and len(received) != 1:
        raise ValueError(f"{method}(axis={received!r}): values are concatenated along one axis, a whole number.")
    return axes(method, received, rank)[0]


def require_alike(method: str, values: Sequence[Any], without: int | None = None, remedy: str = "") -> None:
    """Raise a ValueError if tensors have different types or shapes, as far as these are known.

    >>> require_alike("gather", [tf.ones([2, 3]), tf.ones([1, 3])], without=0)
    >>> require_alike("reduce", [tf.ones([2]), tf.ones([1])], remedy="Name an axis.")
    Traceback (most recent call last):
    ValueError: reduce: the replicas' values are float32 (2,), float32 (1,). They must have one type and shape. ...
    """
    def kept(value: Any) -> tf.TensorShape:
        sizes = None if value.shape.rank is None else value.shape.as_list()
        if sizes is not None and without is not None:
            sizes[without] = None
        return tf.TensorShape(sizes)

    first = values[0]
    for other in values[1:]:
        if other.dtype != first.dtype or not kept(other).is_compatible_with(kept(first)):
            found = ", ".join(f"{each.dtype.name} {each.shape}" for each in values)
            where = "" if without is None else f", but for the size of axis {without}"
            raise ValueError(
                f"{method}: the replicas' values are {found}. They must have one type and shape{where}."
                + (f" {remedy}" if remedy else "")
            )


def arguments(method: str, function: Any, args: Any, kwargs: Any, replicas: int) -> tuple[Any, dict[str, Any]]:
    """The arguments of a call of a function on each replica.

    >>> arguments("run", print, ["a"], None, 2)
    (('a',), {})
    >>> arguments("run", print, "a", None, 2)
    Traceback (most recent call last):
    ValueError: run(fn, args): args is a tuple of the function's positional arguments. Received: 'a'. Write ...
    """
    require_callable(method, "fn", function)
    if not isinstance(args, tuple | list):
        raise ValueError(
            f"{method}(fn, args): args is a tuple of the function's positional arguments. Received: "
            f"{_shortened(args)}. Write args=(value,)."
        )
    named = {} if kwargs is None else kwargs
    if not isinstance(named, Mapping) or not all(isinstance(key, str) for key in named):
        raise ValueError(
            f"{method}(fn, args, kwargs): kwargs is a dict of the function's keyword arguments. Received: "
            f"{_shortened(kwargs)}. Write kwargs={{'name': value}}."
        )
    for value in tf.nest.flatten((tuple(args), dict(named))):
        parts(method, value, replicas)
    return tuple(args), dict(named)


def require_callable(method: str, parameter: str, received: Any) -> None:
    """Raise a ValueError for what is no function.

    >>> require_callable("run", "fn", 4.0)
    Traceback (most recent call last):
    ValueError: run(fn): fn is a function. Received: 4.0. Pass the function itself, and not what it returns.
    """
    if not callable(received):
        raise ValueError(
            f"{method}({parameter}): {parameter} is a function. Received: {_shortened(received)}. Pass the function "
            "itself, and not what it returns."
        )


def require_dataset(subject: str, received: Any) -> None:
    """Raise a ValueError for what is no `tf.data.Dataset`. The subject is the beginning of its message.

    >>> require_dataset("experimental_distribute_dataset takes", [1, 2])
    Traceback (most recent call last):
    ValueError: experimental_distribute_dataset takes a tf.data.Dataset of batches. Received: [1, 2]. ...
    """
    if not isinstance(received, tf.data.Dataset):
        remedy = "Make one of arrays: tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)"
        if isinstance(received, tf.distribute.DistributedDataset | tf.distribute.DistributedIterator):
            remedy = "It is distributed already: use it as it is"
        raise ValueError(f"{subject} a tf.data.Dataset of batches. Received: {_shortened(received)}. {remedy}.")


def _shortened(value: Any) -> str:
    if tf.is_tensor(value):
        return f"a tensor, {value.dtype.name} {value.shape}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:60]}… ({type(value).__name__})"
