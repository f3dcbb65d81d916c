"""What the last `fit` of a model was called with, for `explain()` without arguments.

In: the arguments of `fit`. Out: the data, as long as the user's program keeps it. The data is not kept alive here, so
that memory is free when the user lets go of it.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import keras

DATA = ("x", "y", "sample_weight")
"""The arguments that are data."""
KEPT = ("batch_size", "class_weight")
"""The other arguments on which a batch depends."""


class LastFit:
    """The data of a `fit`, and what else its batches depend on.

    >>> import numpy as np
    >>> x = np.ones((4, 3))
    >>> fit = LastFit((x,), {"batch_size": 2, "epochs": 5})
    >>> fit.arguments["x"] is x, fit.arguments["batch_size"]
    (True, 2)
    >>> del x
    >>> fit.arguments is None
    True
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            given = inspect.signature(keras.Model.fit).bind(None, *args, **kwargs).arguments
        except TypeError:
            # A `fit` of the user's own has other parameters.
            given = {}
        self._kept = {name: given[name] for name in KEPT if given.get(name) is not None}
        self._data = {
            name: keras.tree.map_structure(_reference, given[name]) for name in DATA if given.get(name) is not None
        }

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments of Keras's `fit` that give its batches again; None if a part of the data is gone."""
        found = {name: keras.tree.map_structure(lambda each: each(), value) for name, value in self._data.items()}
        gone = any(each is None for value in found.values() for each in keras.tree.flatten(value))
        return None if gone or "x" not in found else {**found, **self._kept}


def _reference(value: Any) -> Callable[[], Any]:
    """A reference that does not keep a value alive, where Python can make one."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value
