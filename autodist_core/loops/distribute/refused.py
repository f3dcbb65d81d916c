"""Public names of tf.distribute that are refused: each with the reason and with what to write instead.

In: a name. Out: a method that raises a NotYetError, which names both. All other public names work.

>>> refuses("configure")(None)
Traceback (most recent call last):
autodist_core.errors.NotYetError: configure is not supported: ...
"""

from collections.abc import Callable
from typing import Any, NoReturn

from autodist_core.errors import NotYetError

_TENSORFLOW_1 = "it belongs to the sessions of TensorFlow 1"

REFUSED: dict[str, tuple[str, str]] = {
    "auto_shard": (
        "all replicas take their examples from one dataset, which is not sharded over machines",
        "Call dataset.shard before you distribute the dataset",
    ),
    "build": ("a dataset is ready when it is distributed", "Leave it out"),
    "configure": (_TENSORFLOW_1, "Pass settings to autodist_core.distribute(resource_spec, strategy, ...)"),
    "make_dataset_iterator": (_TENSORFLOW_1, "Write iter(strategy.experimental_distribute_dataset(dataset))"),
    "make_input_fn_iterator": (_TENSORFLOW_1, "Write iter(strategy.distribute_datasets_from_function(function))"),
}
"""For each name, the reason and what to write instead."""


def refuses(name: str) -> Callable[..., NoReturn]:
    """A method that refuses to be called. The module has an example."""
    reason, instead = REFUSED[name]

    def refused(*_: Any, **__: Any) -> NoReturn:
        raise NotYetError(f"{name} is not supported: {reason}. {instead}.")

    refused.__name__, refused.__doc__ = name, f"Refused: {reason}. {instead}."
    return refused
