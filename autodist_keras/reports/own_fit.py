"""Call the `fit` that a model's class has, which may have other arguments than Keras's, for some batches only.

In: what a user passed to `plan`, `verify`, `explain`, or to the last `fit`. Out: a call of the model's own `fit`.

>>> class Own(keras.Sequential):
...     def fit(self, *, dataset, **others):
...         return dataset, others
>>> given = of_batches(Own(), dataset=[1, 2], y=None, epochs=3)
>>> given, call_fit(Own(), given), takes(Own(), "dataset")
({'dataset': [1, 2]}, ([1, 2], {'epochs': 2147483648, 'shuffle': False, 'verbose': 0}), True)
"""

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import keras

_OF_BATCHES = ("x", "y", "batch_size", "sample_weight", "class_weight")
"""The arguments of Keras's `fit` on which a batch depends."""
EPOCHS = 2**31
"""A number above every initial epoch that a callback may have left on the model."""
_OTHERS = {*inspect.signature(keras.Model.fit).parameters} - {*_OF_BATCHES}


def of_batches(model: Any, /, **given: Any) -> dict[str, Any]:
    """The given arguments on which a batch depends: all but those of Keras's `fit` that are for whole epochs.

    A `fit` of the model's own may make the data of any argument that it names.
    """
    # Nothing was given for `...`; None of `x` is an error of the user's.
    absent = {name for name, value in given.items() if value is ... or (value is None and name != "x")}
    own = {*_parameters(model)} if type(model).fit is not keras.Model.fit else set()
    return {name: value for name, value in given.items() if name not in (_OTHERS - own) | absent}


def _parameters(model: Any) -> dict[str, inspect.Parameter]:
    """The parameters of the model's `fit` but the first one, the model itself."""
    return dict([*inspect.signature(type(model).fit).parameters.items()][1:])


def takes(model: Any, name: str) -> bool:
    """Whether the model's `fit` takes an argument of this name."""
    parameters = _parameters(model)
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def takes_in_order(model: Any) -> bool:
    """Whether the model's `fit` takes any arguments in their order, such as its data.

    >>> takes_in_order(keras.Sequential())
    False
    """
    return any(each.kind is each.VAR_POSITIONAL for each in _parameters(model).values())


def call_fit(model: Any, given: Mapping[str, Any], **more: Any) -> Any:
    """Call the model's `fit` with what was given, for epochs without end, and with those options that it takes.

    `x` and `y` are its first two arguments, unless it has arguments of these names.
    """
    options = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, **more}
    named = {**given, **{name: value for name, value in options.items() if takes(model, name)}}
    parameters, args = _parameters(model), []
    in_order = [each for each in parameters.values() if each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD)]
    unnamed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    by_name = {name for name, each in parameters.items() if each.kind not in unnamed}
    if "x" in named and "x" not in by_name and in_order:
        args.append(named.pop("x"))
        if "y" in named and "y" not in by_name and (len(in_order) > 1 or not takes(model, "y")):
            args.append(named.pop("y"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data")
        warnings.filterwarnings("ignore", "Limiting epochs to")
        return type(model).fit(model, *args, **named)


def named_arguments(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of the model's `fit` by name; by Keras's names if its own are not known.

    >>> named_arguments(keras.Sequential(), (1, 2), {"epochs": 3})
    {'x': 1, 'y': 2, 'epochs': 3}
    """
    if not args:
        return kwargs
    own = inspect.signature(type(model).fit)
    if any(each.kind is each.VAR_POSITIONAL for each in own.parameters.values()):
        own = inspect.signature(keras.Model.fit)
    try:
        _self, *bound = own.bind(None, *args, **kwargs).arguments.items()
    except TypeError:
        # That call raises the error.
        return kwargs
    rest = next((each.name for each in own.parameters.values() if each.kind is each.VAR_KEYWORD), "")
    others = dict(bound).get(rest, {})
    return {name: value for name, value in bound if name != rest} | others
