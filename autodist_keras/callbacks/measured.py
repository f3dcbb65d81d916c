"""Find the driver of the `fit` in which a callback runs, for callbacks that measure it.

In: the model that Keras gives a callback. Out: the `Driver`, or an error outside of `DistributedModel.fit`.
"""

from typing import Any

from autodist_keras.training.driver import Driver
from autodist_keras.training.exclusive import owner_of


def driver_of(callback: Any) -> Driver:
    """The driver of the `fit` in which a callback runs.

    >>> import keras
    >>> from autodist_keras.callbacks.throughput import Throughput
    >>> callback = Throughput()
    >>> callback.set_model(keras.Sequential(name="small"))
    >>> driver_of(callback)
    Traceback (most recent call last):
    ValueError: Throughput works with DistributedModel.fit only: wrap the model, DistributedModel(model).
    """
    driver = owner_of(callback.model)
    if not isinstance(driver, Driver):
        raise ValueError(
            f"{type(callback).__name__} works with DistributedModel.fit only: wrap the model, DistributedModel(model)."
        )
    return driver
