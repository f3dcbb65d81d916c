"""Hooks: replace attributes of instances for a while, so that no class of Keras is patched.

In: an instance, the name of an attribute, and a replacement. Out: a block in which the instance has the replacement.
The capture and the training use hooks on models, optimizers, losses, metrics and layers.

>>> class Layer:
...     def call(self):
...         return "captured"
>>> layer = Layer()
>>> with hook(layer, "call", lambda: "hooked"):
...     layer.call()
'hooked'
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autodist_core.errors import SeamError


@contextmanager
def hook(instance: Any, name: str, replacement: Any) -> Iterator[None]:
    """Replace an attribute of one instance for a while. The class does not notice: its `__setattr__` is not called.

    A name that the instance does not have is an error, because nothing would ever use the replacement.

    >>> class Loss:
    ...     def call(self):
    ...         return 1
    >>> loss = Loss()
    >>> with hook(loss, "call", lambda: 2):
    ...     loss.call()
    2
    >>> loss.call()
    1
    >>> with hook(loss, "compute", lambda: 2):
    ...     pass
    Traceback (most recent call last):
    autodist_core.errors.SeamError: a Loss has no attribute 'compute' that a hook could replace. ...
    """
    attributes = vars(instance)
    of_class = inspect.getattr_static(type(instance), name, None)  # most attributes of instances have no counterpart
    if (of_class is None and name not in attributes) or inspect.isdatadescriptor(of_class):
        raise SeamError(f"a {type(instance).__name__} has no attribute {name!r} that a hook could replace")
    with put_back(instance, name):
        attributes[name] = replacement
        yield


@contextmanager
def put_back(instance: Any, *names: str) -> Iterator[None]:
    """Restore some attributes of an instance afterwards. Those that the instance did not have are deleted.

    >>> class Model: pass
    >>> model = Model()
    >>> with put_back(model, "history"):
    ...     model.history = [0.5]
    >>> vars(model)
    {}
    """
    attributes = vars(instance)
    before = {name: attributes[name] for name in names if name in attributes}
    try:
        yield
    finally:
        for name in names:
            attributes.pop(name, None)
        attributes.update(before)


@contextmanager
def undone_if_refused(*instances: Any) -> Iterator[None]:
    """Restore all attributes of instances, and what their lists and dicts hold, if the block raises.

    >>> class Model: optimizer = None
    >>> model = Model()
    >>> model.history = [0.5]
    >>> with undone_if_refused(model):
    ...     model.optimizer = "sgd"
    ...     model.history.append(0.25)
    ...     raise ValueError("metrics: expected a list")
    Traceback (most recent call last):
    ValueError: metrics: expected a list
    >>> vars(model)
    {'history': [0.5]}
    """
    before = [(vars(instance), dict(vars(instance))) for instance in instances]
    held = [
        (each, list.copy(each) if isinstance(each, list) else dict(each))
        for _, values in before for value in values.values() for each in _containers(value)
    ]  # fmt: skip
    try:
        yield
    except BaseException:
        for attributes, values in before:
            for name in attributes.keys() - values.keys():
                del attributes[name]
            attributes.update(values)
        for value, content in held:
            # The methods of the built-in class: those of a wrapper would track the change.
            kind = list if isinstance(value, list) else dict
            kind.clear(value)
            (list.extend if kind is list else dict.update)(value, content)
        raise


def _containers(value: Any) -> Iterator[Any]:
    """The list or dict that an attribute is, or that TensorFlow's wrapper of it holds."""
    value = getattr(value, "__wrapped__", value)
    if isinstance(value, list | dict):
        yield value
        yield from (each for each in getattr(value, "__dict__", {}).values() if type(each) is list)
