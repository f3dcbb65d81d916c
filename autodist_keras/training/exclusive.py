"""Let one call at a time use a model: of one DistributedModel, in one thread.

In: a model, and the owner of the call (the driver). Out: a claim, stored on the model while the call runs. A second
owner or a second thread gets a SessionError. The driver, `plan` and `verify` claim a model before they change it.

>>> class Model: name = "small"
>>> model = Model()
>>> with claimed(model, "one") as outermost:
...     with claimed(model, "one") as inner:
...         print(outermost, inner, owner_of(model))
...     with claimed(model, "other"):
...         pass
Traceback (most recent call last):
autodist_core.errors.SessionError: model 'small' is being trained by another DistributedModel at the moment. ...
>>> owner_of(model) is None
True
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autodist_core.errors import SessionError

_CLAIM = "_autodist_claim"
"""The attribute of a model with the owner and the thread of the call that uses it."""


@contextmanager
def claimed(model: Any, owner: Any) -> Iterator[bool]:
    """Claim a model for a block; the value says whether this is the owner's outermost call.

    Another owner and another thread are refused. The module's docstring has an example.
    """
    new = owner, threading.get_ident()
    try:
        # One operation, so that one of two simultaneous threads is refused.
        claim = vars(model).setdefault(_CLAIM, new)
        if claim[0] is not owner:
            raise SessionError(
                f"model {model.name!r} is being trained by another DistributedModel at the moment. "
                "Let that call end, or use the DistributedModel that is running."
            )
        _require_thread(claim)
        yield claim is new
    finally:
        if vars(model).get(_CLAIM) is new:
            vars(model).pop(_CLAIM)


def owner_of(model: Any) -> Any:
    """The owner of the call that uses a model; None if none runs.

    >>> class Model: name = "small"
    >>> model = Model()
    >>> with claimed(model, "one"):
    ...     owner_of(model)
    'one'
    """
    claim = vars(model).get(_CLAIM)
    return None if claim is None else claim[0]


def in_own_thread(model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs in the thread of the model's claim, and raises a SessionError in every other thread.

    Another thread reaches the function through the model's own methods, while a DistributedModel trains the model.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> class Model: name = "small"
    >>> model = Model()
    >>> train = in_own_thread(model, lambda: "trained")
    >>> with claimed(model, "one"), ThreadPoolExecutor(1) as other:
    ...     print(train(), repr(other.submit(train).exception()), sep="; ")
    trained; SessionError('this DistributedModel is training in another thread; one call at a time.')
    """

    def called(*args: Any, **kwargs: Any) -> Any:
        _require_thread(vars(model).get(_CLAIM))
        return function(*args, **kwargs)

    return called


def _require_thread(claim: tuple[Any, int] | None) -> None:
    if claim is not None and claim[1] != threading.get_ident():
        raise SessionError("this DistributedModel is training in another thread; one call at a time.")
