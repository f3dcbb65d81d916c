"""What must be the same for a saved training to go on: the data, and the arguments of `fit` and `compile`.

In: a model, the arguments of `fit`, and Keras's epoch iterator. Out: a text for each, which is compared with the saved
one. Strategy and cluster are not among them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import keras
import numpy as np

from autodist_core.errors import SessionError

_OF_FIT = {
    "batch_size": None, "shuffle": True, "validation_split": 0.0, "class_weight": None, "initial_epoch": 0,
    "steps_per_epoch": None,
}
"""Arguments of `fit` on which the numbers depend, with their defaults."""
_OF_COMPILE = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics")
_NAME = re.compile(r'"name": "[^"]*"(, )?')
"""The names of optimizers and losses, which Keras numbers in each process."""
_ROWS = 16
"""How many rows of an array are compared."""


def settings_of(model: Any, arguments: Mapping[str, Any], loop: Any, kind: str) -> dict[str, str]:
    """The settings of a `fit`, by name.

    >>> from types import SimpleNamespace
    >>> model, loop = keras.Sequential([keras.layers.Dense(1)]), SimpleNamespace(num_batches=2)
    >>> model.compile("sgd", "mse")
    >>> found = settings_of(model, {"x": np.zeros((8, 2)), "batch_size": 4}, loop, "arrays")
    >>> found["fit(batch_size=...)"], found["number of batches in an epoch"], found["data, x[0]"].partition(",")[0]
    ('4', '2', 'float64[8')
    """
    found = {f"fit({name}=...)": repr(arguments.get(name, default)) for name, default in _OF_FIT.items()}
    found |= _compiled(model)
    found["compile(steps_per_execution=...)"] = repr(model.steps_per_execution)
    found["kind of data"] = kind
    # None for data whose end Keras does not know before it is there.
    found["number of batches in an epoch"] = repr(loop.num_batches)
    x: Any = arguments.get("x")
    if kind == "tf.data.Dataset":
        found["type of the data"] = repr(x.element_spec)
    if kind == "arrays":
        for name in ("x", "y", "sample_weight"):
            for index, leaf in enumerate(keras.tree.flatten(arguments.get(name))):
                found[f"data, {name}[{index}]"] = _described(leaf)
    return found


def require_equal(whose: str, saved: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise a SessionError that names every setting that is another one.

    >>> require_equal("the folder", {"fit(batch_size=...)": "32"}, {"fit(batch_size=...)": "64"})
    Traceback (most recent call last):
    autodist_core.errors.SessionError: the folder holds a training with other settings:
      - fit(batch_size=...): 32 in the saved training, 64 in this one
    Pass what was passed before, or give this training another folder. Strategy and cluster may change.
    """
    names = [name for name in {**saved, **now} if saved.get(name) != now.get(name)]
    if names:
        lines = [
            f"\n  - {name}: {saved.get(name, 'nothing')} in the saved training, {now.get(name, 'nothing')} in this one"
            for name in names
        ]
        raise SessionError(
            f"{whose} holds a training with other settings:{''.join(lines)}\nPass what was passed before, or give this "
            "training another folder. Strategy and cluster may change."
        )


def _compiled(model: Any) -> dict[str, str]:
    """The arguments of `compile`; only the optimizer's class if they contain what Keras cannot describe."""
    try:
        config = model.get_compile_config() or {}
    except Exception:
        return {"compile(optimizer=...)": type(model.optimizer).__name__}
    return {
        f"compile({name}=...)": _NAME.sub(
            "", json.dumps(config[name], default=lambda value: type(value).__name__, sort_keys=True)
        )
        for name in _OF_COMPILE if name in config
    }


def _described(array: Any) -> str:
    """Type and shape of an array, and a checksum of some of its rows.

    >>> _described(np.zeros((4, 2)))
    'float64[4,2], checksum ...'
    """
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        return type(array).__name__
    shape = ",".join(map(str, array.shape))
    dtype = keras.backend.standardize_dtype(array.dtype) if str(array.dtype) != "object" else "object"
    try:
        places = np.unique(np.linspace(0, array.shape[0] - 1, _ROWS).astype(int))
        rows = b"".join(np.asarray(array[int(place)]).tobytes() for place in places)
    except Exception:  # an array-like of another package
        return f"{dtype}[{shape}]"
    return f"{dtype}[{shape}], checksum {crc32(rows):08x}"
