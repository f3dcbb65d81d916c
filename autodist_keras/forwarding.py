"""The attributes of a `DistributedModel` that are not its own: those of its settings, and of the Keras model.

In: the name of an attribute. Out: its value in the settings or on the model, where it is set, too.
"""

from dataclasses import replace
from typing import Any

import keras

from autodist_core.training import SETTINGS
from autodist_keras import checks
from autodist_keras.training.driver import Driver

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
