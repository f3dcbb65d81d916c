"""What the last `fit` of a model was called with, for `explain()` without arguments.

In: the arguments of `fit`. Out: the data, as long as the user's program keeps it. The data is not kept alive here, so
that memory is free when the user lets go of it.
"""

import weakref
from collections.abc import Callable
from typing import Any

import keras

from autodist_keras.reports.own_fit import named_arguments, of_batches

_GONE = object()


class LastFit:
    """The data of a `fit`, and what else its batches depend on.

    >>> import numpy as np
    >>> x = np.ones((4, 3))
    >>> fit = LastFit(keras.Sequential(), (x,), {"batch_size": 2, "epochs": 5})
    >>> fit.arguments["x"] is x, fit.arguments["batch_size"]
    (True, 2)
    >>> del x
    >>> fit.arguments is None
    True
    """

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._given = keras.tree.map_structure(_reference, of_batches(model, **named_arguments(model, args, kwargs)))

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments of `fit` that give its batches again; None if a part of the data is gone."""
        found = keras.tree.map_structure(lambda each: each(), self._given)
        return None if any(each is _GONE for each in keras.tree.flatten(found)) else found


def _reference(value: Any) -> Callable[[], Any]:
    """A reference that does not keep a value alive, where Python can make one."""
    try:
        reference = weakref.ref(value)
    except TypeError:
        return lambda: value
    return lambda: _GONE if (found := reference()) is None else found
