"""Methods that `DistributedModel` has in common with `keras.Model`: their signatures, and Keras's loops.

In: a method of `DistributedModel` that is named like one of Keras's. Out: the same method with Keras's signature, or a
method that runs Keras's loop over all replicas.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import keras

from autodist_core.training import SETTINGS
from autodist_keras import checks
from autodist_keras.training.driver import Driver


def shown_as_keras(method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a method the signature of Keras's method of that name, which `help` and editors show.

    The keyword-only parameters that the method itself declares follow Keras's.

    >>> @shown_as_keras
    ... def compile(self, *args, strategy=None, **kwargs):
    ...     pass
    >>> list(inspect.signature(compile).parameters)[:3], list(inspect.signature(compile).parameters)[-1]
    (['self', 'optimizer', 'loss'], 'strategy')
    """
    signature = inspect.signature(getattr(keras.Model, method.__name__))
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    added = [one for one in inspect.signature(method).parameters.values() if one.kind is keyword_only]
    method.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    return method


def keras_loop(declared: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method that runs Keras's loop of the same name over all replicas; `declared` gives name and docstring.

    >>> class Front:
    ...     @keras_loop
    ...     def fit(self, *args, **kwargs): ...
    >>> list(inspect.signature(Front.fit).parameters)[:3]
    ['self', 'x', 'y']
    """
    name = declared.__name__

    @wraps(declared)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._driver.looping(name, args, kwargs) as (positional, named):
            return self._call_model(name, *positional, **named)

    return shown_as_keras(run)


def call_keras(front: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call the model's method; if the user replaced it with that of `front`, the second entry calls Keras's original.

    `model.fit = dm.fit` is such a replacement: it calls `dm.fit`, which enters here again.

    >>> from types import SimpleNamespace
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> call_keras(SimpleNamespace(model=model, _replacements=set()), "count_params", (), {})
    4
    """
    to_keras = name in front._replacements or name not in vars(front.model)
    before = front._replacements
    front._replacements = before - {name} if to_keras else before | {name}
    try:
        if to_keras:
            return getattr(type(front.model), name)(front.model, *args, **kwargs)
        return getattr(front.model, name)(*args, **kwargs)
    finally:
        front._replacements = before


class FromConfig:
    """`from_config` of an instance is its model's. `clone_model` calls that of the class, which raises an error.

    >>> type("Front", (), {"from_config": FromConfig()}).from_config({})
    Traceback (most recent call last):
    TypeError: A DistributedModel has no configuration of its own. Pass its Keras model, dm.model.
    """

    def __get__(self, front: Any, kind: Any) -> Callable[..., Any]:
        return _refuse if front is None else front.model.from_config


def _refuse(config: Any, custom_objects: Any = None) -> Any:
    raise TypeError("A DistributedModel has no configuration of its own. Pass its Keras model, dm.model.")


def wrap_again(kind: Any, model: Any, settings: dict[str, Any], compressors: Any) -> Any:
    """Make the copy of a `DistributedModel`, or of a class made of it: from its model, settings and compressors' state.

    >>> from autodist_keras import DistributedModel
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> wrap_again(DistributedModel, model, {"strategy": "PS"}, None).model is model
    True
    """
    copied = kind(model, **settings)
    copied.set_compressor_state(compressors)
    return copied


_OWN = ("model", "_driver", "_replacements", "_last_fit")
"""The attributes that the wrapper stores on itself. It passes every other one to the model or to the settings."""


class Forwarding:
    """Passes attributes on to the settings and the model.

    >>> from autodist_keras import DistributedModel
    >>> dm = DistributedModel(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="small"))
    >>> dm.name, dm.share_memory
    ('small', None)
    """

    model: Any
    _driver: Driver
    """For the package's own reports and callbacks, too; a public name would hide an attribute of the model."""

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            raise AttributeError(name)
        if name in SETTINGS:
            return getattr(self._driver.settings, name)
        try:
            return getattr(self.model, name)
        except AttributeError:
            checks.refuse_misspelt(name, self.model)
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SETTINGS:
            self._driver.change(replace(self._driver.settings, **{name: value}))
        elif name == "model" and name in vars(self):
            raise AttributeError("a DistributedModel keeps its model: wrap the other one, DistributedModel(other, ...)")
        elif name in _OWN:
            object.__setattr__(self, name, value)
        elif hasattr(type(self), name) and not hasattr(keras.Model, name):
            raise AttributeError(
                f"DistributedModel.{name} is the wrapper's own, and cannot be set. An attribute of the Keras model is "
                f"set on the model: dm.model.{name}."
            )
        else:
            checks.refuse_misspelt(name, self.model)
            setattr(self.model, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *SETTINGS, *dir(self.model)})
