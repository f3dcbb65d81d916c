"""Who trains a model at the moment: one call at a time, of one DistributedModel, in one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from autodist_core.errors import SessionError

_CLAIM = "_autodist_claim"


@dataclass(frozen=True, eq=False)
class Claim:
    """One call that has a model to itself."""

    owner: Any
    thread: int


@contextmanager
def claimed(model: Any, owner: Any) -> Iterator[bool]:
    """Have a model to oneself; says whether this is the owner's outermost call. Whoever else comes is refused."""
    mine = Claim(owner, threading.get_ident())
    try:
        # In one operation, so that of two threads that come at once one is refused.
        holder = vars(model).setdefault(_CLAIM, mine)
        if holder.owner is not owner:
            raise SessionError(
                f"model {model.name!r} is being trained by another DistributedModel at the moment. "
                "Let that call end, or use the DistributedModel that is running."
            )
        _require_thread(holder)
        yield holder is mine
    finally:
        if vars(model).get(_CLAIM) is mine:
            vars(model).pop(_CLAIM)


def is_claimed(model: Any, owner: Any) -> bool:
    """Whether a call of this owner is under way."""
    holder = vars(model).get(_CLAIM)
    return holder is not None and holder.owner is owner


def in_own_thread(model: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for the thread of the call that has the model; for others that find it there an error.

    They find it by the model's own methods, while a DistributedModel trains it.
    """

    def called(*args: Any, **kwargs: Any) -> Any:
        _require_thread(vars(model).get(_CLAIM))
        return function(*args, **kwargs)

    return called


def _require_thread(holder: Claim | None) -> None:
    if holder is not None and holder.thread != threading.get_ident():
        raise SessionError("this DistributedModel is training in another thread; one call at a time.")
