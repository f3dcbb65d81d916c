"""Where a callback keeps values: its attributes, those of its class, and what its functions hold.

In: a callback. Out: its places, by name. `Best: losses` is an attribute of the class `Best`. `schedule(calls)` is held
by the callback's `schedule`: a variable around a function, an attribute of an object that can be called, or one of the
object whose method it is.

>>> def counting():
...     steps = 0
...     def count(batch, logs):
...         nonlocal steps
...         steps += 1
...     return count
>>> callback = keras.callbacks.LambdaCallback(on_train_batch_end=counting())
>>> callback.on_train_batch_end(0, {})
>>> place = places(callback)["on_train_batch_end(steps)"]
>>> place.value
1
>>> place.put(5)
>>> callback.on_train_batch_end(1, {})
>>> places(callback)["on_train_batch_end(steps)"].value
6
"""

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras

_STATELESS = {"autodist_core", "autodist_keras", "builtins", "functools", "keras", "numpy", "tensorflow"}
"""The packages whose objects that can be called are functions."""
_OF_KERAS = keras.Layer | keras.Metric | keras.Loss | keras.optimizers.Optimizer | keras.callbacks.Callback
"""What Keras, or `Resume`, saves in another way."""


@dataclass(frozen=True)
class Place:
    """A value that a callback keeps.

    >>> held = {"wait": 3}
    >>> Place(held["wait"], partial(held.__setitem__, "wait")).put(2)
    >>> held
    {'wait': 2}
    """

    value: Any
    put: Callable[[Any], None]
    of: str = "callback"
    """What keeps it: the callback, an "object" that can be called, or a "function"."""

    def fill(self, value: Any) -> None:
        """Put a value there. The program may hold its lists, sets and dictionaries, too, so these are filled anew.

        >>> steps = [1, 2]
        >>> Place({"steps": steps}, print).fill({"steps": [3]})
        >>> steps
        [3]
        """
        filled = _filled(self.value, value)
        if filled is not self.value:
            self.put(filled)


def places(callback: Any) -> dict[str, Place]:
    """The places of a callback by name. The module has an example."""
    found = {name: Place(value, partial(vars(callback).__setitem__, name)) for name, value in vars(callback).items()}
    for kind in _own_classes(callback):
        for name, value in vars(kind).items():
            if not (name.startswith("__") or name == "_abc_impl" or hasattr(value, "__get__")):
                found[f"{kind.__qualname__}: {name}"] = Place(value, partial(setattr, kind, name))
    for name, value in vars(callback).items():
        found |= _held(name, value, [callback])
    return found


def is_object(function: Any) -> bool:
    """Whether something that can be called is an object with attributes of its own, and no function of a package.

    >>> is_object(len), is_object(keras.activations.relu), is_object(keras.optimizers.schedules.CosineDecay(0.1, 9))
    (False, False, False)
    """
    of_packages = type(function).__module__.partition(".")[0] in _STATELESS
    of_others = of_packages or isinstance(function, type | _OF_KERAS)
    return bool(getattr(function, "__dict__", None)) and not of_others


def _filled(present: Any, value: Any) -> Any:
    """The present list, set or dictionary with the values of another one; the value itself if it is none."""
    if type(present) is type(value) is set:
        present.clear()
        present.update(value)
    elif type(present) is type(value) is list:
        present[:] = [*map(_filled, present, value), *value[len(present) :]]
    elif type(present) is type(value) is dict:
        filled = {key: _filled(present.get(key), each) for key, each in value.items()}
        present.clear()
        present.update(filled)
    else:
        return value
    return present


def _held(name: str, function: Any, met: list[Any]) -> dict[str, Place]:
    """What a function of this name holds: variables around it, or attributes of its object; and what these hold."""
    if not callable(function) or any(function is each for each in met):
        return {}
    found = {f"{name}({key})": place for key, place in _kept_by(function)}
    for key, place in [*found.items()]:
        found |= _held(key, place.value, [*met, function])
    return found


def _kept_by(function: Any) -> Iterator[tuple[str, Place]]:
    if isinstance(function, types.FunctionType):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield name, Place(cell.cell_contents, partial(setattr, cell, "cell_contents"), "function")
            except ValueError:  # the variable has no value yet
                continue
        return
    holder = getattr(function, "__self__", function)
    if isinstance(holder, list | dict):
        yield type(holder).__name__, Place(holder, lambda _: None, "function")
    elif is_object(holder):
        kind = "object" if holder is function else "function"
        for name, value in vars(holder).items():
            yield name, Place(value, partial(vars(holder).__setitem__, name), kind)


def _own_classes(callback: Any) -> list[type]:
    """The classes of a callback that are not Keras's."""
    kinds = type(callback).__mro__
    return [kind for kind in kinds if kind is not object and not kind.__module__.startswith("keras.")]
