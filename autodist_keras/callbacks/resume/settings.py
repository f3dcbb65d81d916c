"""What must be the same for a saved training to go on: the data, and the arguments of `fit` and `compile`.

In: a model, the arguments of `fit`, and Keras's epoch iterator. Out: a text for each, which is compared with the saved
one. Strategy and cluster are not among them.

A configuration of Keras becomes a text that is the same in each process in which a program builds the same. Keras
numbers the names of layers, optimizers and losses anew in each process, and in a notebook with each run of a cell. The
code of a lambda is not compared.

>>> text_of({"name": "dense_3", "units": 2}) == text_of({"name": "dense", "units": 2})
True
>>> text_of({"name": "mixed_bfloat16"}) == text_of({"name": "float32"})
False
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

import keras
import numpy as np

from autodist_core.errors import SessionError
from autodist_keras.capture.optimizers import optimizers_of

_OF_FIT = {
    "batch_size": None, "shuffle": True, "validation_split": 0.0, "class_weight": None, "initial_epoch": 0,
    "steps_per_epoch": None, "validation_freq": 1, "validation_steps": None,
}
"""Arguments of `fit` on which the numbers depend, with their defaults."""
_OF_COMPILE = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics")
_RATE = "compile(optimizer=...), learning rate"
"""Compared if both trainings began with an optimizer that had made no step: a callback may have changed it since."""
_NUMBER = re.compile(r"_\d+$")
_LINES = 6
"""How many settings a message names."""
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
    found = {f"fit({name}=...)": repr(_plain(arguments.get(name, default))) for name, default in _OF_FIT.items()}
    found |= _compiled(model)
    found["compile(jit_compile=...)"] = repr(bool(model.jit_compile))
    found |= _layers(model)
    for number, optimizer in enumerate(optimizers_of(model)):
        own = optimizer is model.optimizer
        if not own:
            found[f"optimizer {number} of the model"] = text_of(optimizer.get_config(), _is_rate)
        if not int(optimizer.iterations):
            name = _RATE if own else f"{_RATE} of optimizer {number} of the model"
            found[name] = repr(float(optimizer.learning_rate))
    found["compile(steps_per_execution=...)"] = repr(model.steps_per_execution)
    found["kind of data"] = kind
    # None for data whose end Keras does not know before it is there.
    found["number of batches in an epoch"] = repr(_plain(loop.num_batches))
    x: Any = arguments.get("x")
    if kind == "tf.data.Dataset":
        found["type of the data"] = repr(x.element_spec)
    if kind == "arrays":
        for name in ("x", "y", "sample_weight"):
            for index, leaf in enumerate(keras.tree.flatten(arguments.get(name))):
                found[f"data, {name}[{index}]"] = _described(leaf)
    validation = arguments.get("validation_data")
    if isinstance(validation, tuple | list):
        for index, leaf in enumerate(keras.tree.flatten(tuple(validation))):
            found[f"data, validation_data[{index}]"] = _described(leaf)
    return found


def _plain(value: Any) -> Any:
    """The same for what counts alike: numbers of numpy and of Python, a whole number as a float, the order of a dict.

    >>> _plain({1: np.int64(4), 0: 0.0})
    {0: 0, 1: 4}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {_plain(key): _plain(value[key]) for key in sorted(value, key=repr)}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _layers(model: Any) -> dict[str, str]:
    """The class of each layer, and a checksum of its configuration where Keras can describe it.

    Initializers do not count: the weights are those of the saved training.
    """
    found = {}
    for number, layer in enumerate(model._flatten_layers(include_self=False)):
        try:
            text = text_of(layer.get_config(), lambda key, _: key.endswith("initializer"))
        except Exception:
            text = ""
        found[f"layer {number} of the model"] = f"{type(layer).__name__}, checksum {crc32(text.encode()):08x}"
    return found


def _is_rate(key: str, value: Any) -> bool:
    """Whether an entry of a configuration is the current learning rate, and no schedule."""
    return key == "learning_rate" and isinstance(value, float)


def require_equal(whose: str, saved: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise a SessionError that names every setting that is another one.

    >>> require_equal("the folder", {"fit(batch_size=...)": "32"}, {"fit(batch_size=...)": "64"})
    Traceback (most recent call last):
    autodist_core.errors.SessionError: the folder holds a training with other settings:
      - fit(batch_size=...): 32 in the saved training, 64 in this one
    Pass what was passed before, or give this training another folder. Strategy and cluster may change.
    """
    names = [
        name for name in {**saved, **now}
        if saved.get(name) != now.get(name) and (not name.startswith(_RATE) or (name in saved and name in now))
    ]
    if names:
        lines = [
            f"\n  - {name}: {saved.get(name, 'nothing')} in the saved training, {now.get(name, 'nothing')} in this one"
            for name in names[:_LINES]
        ]
        more = f"\n  and {len(names) - _LINES} more" if len(names) > _LINES else ""
        raise SessionError(
            f"{whose} holds a training with other settings:{''.join(lines)}{more}\nPass what was passed before, or "
            "give this training another folder. Strategy and cluster may change."
        )


def _compiled(model: Any) -> dict[str, str]:
    """The arguments of `compile`; only the optimizer's class if they contain what Keras cannot describe."""
    try:
        config = model.get_compile_config() or {}
    except Exception:
        return {"compile(optimizer=...)": type(model.optimizer).__name__}
    return {f"compile({name}=...)": text_of(config[name], _is_rate) for name in _OF_COMPILE if name in config}


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


def text_of(config: Any, without: Callable[[str, Any], bool] = lambda key, value: False) -> str:
    """A configuration as text, without the entries of dictionaries that `without` names. The module has an example.

    >>> text_of({"units": 2, "bias_initializer": "zeros"}, lambda key, value: key.endswith("initializer"))
    '{"units": 2}'
    """
    return json.dumps(_unnumbered_in(config, without), default=lambda value: type(value).__name__, sort_keys=True)


def _unnumbered_in(config: Any, without: Callable[[str, Any], bool]) -> Any:
    if isinstance(config, dict):
        if config.get("class_name") == "__lambda__":
            return "a lambda"
        return {
            str(key): _unnumbered(each) if key == "name" else _unnumbered_in(each, without)
            for key, each in config.items() if not without(str(key), each)
        }
    if not isinstance(config, list | tuple):
        return config
    if [type(part) for part in config] == [str, int, int]:  # an output of a layer, as a functional model names it
        return [_unnumbered(config[0]), *config[1:]]
    return [_unnumbered_in(part, without) for part in config]


def _unnumbered(name: Any) -> Any:
    return _NUMBER.sub("", name) if isinstance(name, str) else name
