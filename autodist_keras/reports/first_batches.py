"""Turn a user's data into batches, as `fit` hands them to `train_step`.

In: the arguments of `plan` and `verify`: those of `fit` on which batches depend. Out: the first batches.
There is one way from data to batches: the model's own `fit`, which calls Keras's. It runs here with a train function
that collects the batches and trains nothing. So `plan` and `verify` take every form of data that `fit` takes, and see
the same structures.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import keras
import tensorflow as tf

from autodist_keras import checks
from autodist_keras.capture.hooks import hook, put_back
from autodist_keras.reports.own_fit import call_fit, takes, takes_in_order
from autodist_keras.training.batches import kind_of_data
from autodist_keras.training.exclusive import claimed
from autodist_keras.training.step_functions import feed_of

_UNKNOWN = "Unrecognized data type"
"""How Keras's error begins for data that `fit` does not take."""


class _EnoughError(Exception):
    """Ends a `fit` that was started only for its first batches."""


def first_batches(whose: str, model: Any, owner: Any, given: Mapping[str, Any], count: int = 1) -> list[Any]:
    """The first batches of data, at most `count`. Arrays are one batch, which is repeated `count` times.

    A generator is asked for at least two batches, and does not give them again. If a loss needs targets, a batch
    without targets is refused.

    >>> import numpy as np
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> x, y = np.zeros((8, 3)), np.ones((8, 1))
    >>> [[part.shape for part in batch] for batch in first_batches("plan", model, None, {"x": x, "y": y})]
    [[TensorShape([8, 3]), TensorShape([8, 1])]]
    >>> dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    >>> [[part.shape for part in batch] for batch in first_batches("verify", model, None, {"x": dataset}, 3)]
    [[TensorShape([5, 3]), TensorShape([5, 1])], [TensorShape([3, 3]), TensorShape([3, 1])]]
    """
    checks.compiled(model)
    checks.optimizer(model)
    x, y = given.get("x"), given.get("y")
    rows = None
    if "x" in given or not checks.is_own(model, "fit") or (not given and takes_in_order(model)):
        rows = _rows_of_arrays(whose, x, y, given.get("sample_weight"))
    if "batch_size" in given or not takes(model, "batch_size"):
        rows = None
    try:
        found = _collected(model, owner, {**given, "batch_size": rows} if rows else given, 1 if rows else count)
    except ValueError as error:
        if not str(error).startswith(_UNKNOWN):
            raise
        raise _no_data(whose, x, y) from None
    if not found:
        raise ValueError(f"{whose}(x): the {'data' if x is None else _kind(x)} has no batches; at least 1 is needed.")
    _require_targets(whose, model, found[0])
    return found * count if rows else found


def _collected(model: Any, owner: Any, given: Mapping[str, Any], count: int) -> list[Any]:
    """Run the model's own `fit` until it has handed over `count` batches. The model stays as it was."""
    found: list[Any] = []

    def collect(iterator: Any) -> Any:
        if len(found) >= count:
            raise _EnoughError
        fetch: Callable[[], Any] = feed_of(iterator).fetch
        while len(found) < count:
            try:
                found.append(fetch())
            except (StopIteration, tf.errors.OutOfRangeError):
                break
        # At the end of the data, Keras ends the data's workers, and then asks for the metrics.
        raise StopIteration

    def make(force: bool = False) -> None:
        vars(model)["train_function"] = collect

    def enough(*_: Any) -> Any:
        raise _EnoughError

    with ExitStack() as ending:
        ending.enter_context(claimed(model, owner))
        ending.enter_context(put_back(model, "train_function", "history"))
        ending.enter_context(hook(model, "stop_training", False))
        ending.enter_context(hook(model, "make_train_function", make))
        ending.enter_context(hook(model, "reset_metrics", lambda: None))
        ending.enter_context(hook(model, "get_metrics_result", enough))
        with suppress(_EnoughError):
            call_fit(model, given)
    return found


def _rows_of_arrays(whose: str, x: Any, y: Any, sample_weight: Any) -> int | None:
    """The number of examples of arrays; None for data that comes in batches.

    Arrays without examples are refused, and so are targets beside data that has its own.

    >>> import numpy as np
    >>> _rows_of_arrays("plan", [np.zeros((4, 2)), np.zeros((4, 3))], None, None)
    4
    >>> _rows_of_arrays("plan", np.zeros((0, 2)), None, None)
    Traceback (most recent call last):
    ValueError: plan(x, y): the batch has no examples; at least 1 is needed.
    """
    if x is None:
        raise _no_data(whose, x, y)
    if kind_of_data(x) != "arrays":
        if y is not None or sample_weight is not None:
            raise ValueError(f"{whose}(x, y): targets come with the batches of a {_kind(x)}; leave y out.")
        return None
    leaves = [leaf for leaf in keras.tree.flatten((x, y, sample_weight)) if leaf is not None]
    shapes = [leaf.shape for leaf in leaves if hasattr(leaf, "shape") and len(leaf.shape) > 0]
    if not shapes or len(shapes) < len(leaves):
        return None
    if any(shape[0] == 0 for shape in shapes):
        raise ValueError(f"{whose}(x, y): the batch has no examples; at least 1 is needed.")
    return int(shapes[0][0])


def _kind(x: Any) -> str:
    return "tf.data.Dataset" if isinstance(x, tf.data.Dataset) else type(x).__name__


def _no_data(whose: str, x: Any, y: Any) -> TypeError:
    return TypeError(
        f"{whose}(x, y): expected the arrays of one batch, or batches in a form that fit takes, such as a "
        f"tf.data.Dataset, a keras.utils.PyDataset or a generator. Received: x of type {type(x).__name__}, y of type "
        f"{type(y).__name__}."
    )


def _require_targets(whose: str, model: Any, batch: Any) -> None:
    own = keras.Model.train_step is type(model).train_step and keras.Model.compute_loss is type(model).compute_loss
    needed = own and model.compiled and model._compile_loss is not None
    if needed and keras.utils.unpack_x_y_sample_weight(batch)[1] is None:
        raise ValueError(
            f"{whose}: model {model.name!r} is compiled with a loss, which needs targets. "
            f"Pass them, {whose}(x, y), or a dataset whose batches have them."
        )
