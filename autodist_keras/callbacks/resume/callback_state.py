"""The state of callbacks: what `Resume` saves of each, and gives back to it.

In: the callbacks of a `fit`. Out: values that `encoding.py` can encode. A callback that has the methods `get_state()`
and `set_state(state)` decides itself what is saved. The state of every other callback is its attributes that have
changed since the beginning of `fit`: numbers, strings, None, arrays, functions of modules, and lists, tuples, sets and
dictionaries of them. Attributes that have not changed are settings. If the user changes a setting before a resume, such
as `patience`, the new value holds, and so does what `on_train_begin` has made of it. What a function of a callback
holds is not saved, and named: a variable around it, or an attribute of an object that can be called.

>>> early = keras.callbacks.EarlyStopping(patience=3)
>>> states = CallbackStates([early])
>>> early.wait = 2
>>> saved = states.get([early])
>>> early = keras.callbacks.EarlyStopping(patience=5)
>>> CallbackStates([early]).set([early], saved)
>>> early.wait, early.patience
(2, 5)
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np

from autodist_core.log import log
from autodist_core.runtime import same_bits
from autodist_keras.callbacks.resume.encoding import decode, encode

_NO_STATE = {"_model", "params", "_is_tracing", "_profiler_started"}
"""The attributes that Keras sets on every callback, and what the profiler of one process does for TensorBoard."""
_STATELESS = {"autodist_core", "autodist_keras", "builtins", "functools", "keras", "numpy", "tensorflow"}
"""The packages whose objects that can be called hold nothing that a training changes."""
_left: WeakKeyDictionary[Any, tuple[str, dict[str, Any], dict[str, bytes]]] = WeakKeyDictionary()
"""Of callbacks that have been in a `fit`: its folder, what they held before it, and checksums of what they held then.
"""


class CallbackStates:
    """The states of the callbacks of one `fit`. The module has an example."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._before = {id(callback): dict(_attributes(callback)) for callback in callbacks}
        """What each callback held before `fit`, encoded."""
        self._begun: dict[int, dict[str, Any]] = {}
        """What each callback held after its `on_train_begin`, encoded."""
        self._kept = tuple(callbacks)
        self._mentioned: set[str] = set()

    def rewind(self, folder: str) -> None:
        """Give callbacks that an earlier `fit` of this process has changed what they held before that `fit`.

        So they begin as in another process, before a state of the folder is set. A value that the program has changed
        since then stays.
        """
        for callback in filter(_is_hashable, self._kept):
            where, before, left = _left.get(callback, ("", {}, {}))
            _put(callback, {
                name: decode(*before[name]) for name, now in self._before[id(callback)].items()
                if where == folder and name in before and _digest(now) == left.get(name)
            })
            self._before[id(callback)] = dict(_attributes(callback))

    def leave(self, folder: str) -> None:
        """Note what the callbacks held before this `fit`, and what they hold at its end."""
        for callback in filter(_is_hashable, self._kept):
            left = {name: _digest(each) for name, each in _attributes(callback)}
            _left[callback] = folder, self._before[id(callback)], left

    def begin(self) -> None:
        """Note what `on_train_begin` has made of the callbacks, when it has run for all."""
        self._begun = self._begun or {id(callback): dict(_attributes(callback)) for callback in self._kept}

    def get(self, callbacks: Sequence[Any]) -> dict[str, Any]:
        """The state of each callback, by its class and its position among those of the class."""
        return {name: self._get(callback) for name, callback in _named(callbacks)}

    def set(self, callbacks: Sequence[Any], states: dict[str, Any]) -> None:
        """Give each callback the state that `get` returned. A callback that was not there then keeps its own."""
        for name, callback in _named(callbacks):
            if name not in states:
                log.warning("Resume: the saved training had no callback %s; it begins anew.", name)
            elif _has_protocol(callback):
                callback.set_state(states[name])
            else:
                now = dict(_attributes(callback))  # an open file, which is no state, stays
                settings = {
                    name: decode(*each) for name, each in self._first(callback).items()
                    if name in now and not _equal(now[name], each)
                }
                _put(callback, {**settings, **states[name]})

    def _get(self, callback: Any) -> Any:
        if _has_protocol(callback):
            state = callback.get_state()
            try:
                encode(state, [])
            except TypeError as error:
                raise TypeError(
                    f"{type(callback).__name__}.get_state() returned a value with a {error}. A state may consist of "
                    "numbers, strings, None, arrays, and lists, tuples and dictionaries of them."
                ) from None
            return state
        self._mention(callback)
        earlier = self._before.get(id(callback), {}), self._first(callback)
        return {
            name: decode(tree, arrays) for name, (tree, arrays) in _attributes(callback)
            if any(name not in before or not _equal(before[name], (tree, arrays)) for before in earlier)
        }

    def _first(self, callback: Any) -> dict[str, Any]:
        """What the callback held when the first epoch began."""
        return self._begun.get(id(callback)) or self._before.get(id(callback), {})

    def _mention(self, callback: Any) -> None:
        """Say once what a user's callback, or a function that a user gave to one of Keras's, keeps and is not saved."""
        kind = type(callback)
        if kind.__name__ in self._mentioned:
            return
        self._mentioned.add(kind.__name__)
        saved, of_keras = {name for name, _ in _attributes(callback)} | _NO_STATE, kind.__module__.startswith("keras.")
        left = sorted(
            name for name, value in vars(callback).items()
            if name not in saved and (callable(value) or not of_keras) and _may_be_state(callback, value)
        )
        if left:
            log.warning(
                "Resume: of callback %s, %s %s not saved. Give it get_state() and set_state(state) if that is state.",
                kind.__name__, ", ".join(left), "is" if len(left) == 1 else "are",
            )


def _may_be_state(callback: Any, value: Any) -> bool:
    """Whether a value may change in a training: no plain function, and no object of Keras without own variables."""
    if isinstance(value, keras.Layer | keras.Metric):
        trained = {id(variable) for variable in callback.model.variables}
        return any(id(variable) not in trained for variable in value.variables)
    if isinstance(value, FunctionType):
        return value.__closure__ is not None
    of_packages = type(value).__module__.partition(".")[0] in _STATELESS or isinstance(value, type)
    return not callable(value) or (bool(getattr(value, "__dict__", None)) and not of_packages)


def _put(callback: Any, values: dict[str, Any]) -> None:
    """Put values where they were."""
    for name, value in values.items():
        vars(callback)[name] = _filled(vars(callback).get(name), value)


def _filled(present: Any, value: Any) -> Any:
    """The present list, set or dictionary with the values of another one; the value itself if it is none.

    The program may hold them, too, so they are filled anew.

    >>> _filled(held := [1, 2], [3]) is held, held
    (True, [3])
    """
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


def _has_protocol(callback: Any) -> bool:
    return hasattr(callback, "get_state") and hasattr(callback, "set_state")


def _named(callbacks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    counts: dict[str, int] = {}
    for callback in callbacks:
        kind = type(callback).__qualname__
        counts[kind] = counts.get(kind, 0) + 1
        yield f"{kind} {counts[kind]}", callback


def _attributes(callback: Any) -> Iterator[tuple[str, tuple[Any, list[np.ndarray]]]]:
    """The attributes of a callback that can be encoded, encoded. Their arrays are copies."""
    for name, value in vars(callback).items():
        arrays: list[np.ndarray] = []
        if name not in _NO_STATE and not isinstance(value, keras.Model):
            try:
                yield name, (encode(value, arrays), list(map(np.array, arrays)))
            except TypeError:
                continue


def _is_hashable(callback: Any) -> bool:
    return type(callback).__hash__ is not None


def _digest(value: tuple[Any, list[np.ndarray]]) -> bytes:
    """A checksum of an encoded value, which may be as large as the model."""
    found = sha256(repr(value[0]).encode())
    for array in value[1]:
        found.update(f"{array.dtype.str} {array.shape}".encode() + array.tobytes())
    return found.digest()


def _equal(one: tuple[Any, list[np.ndarray]], two: tuple[Any, list[np.ndarray]]) -> bool:
    # The same tree has as many arrays.
    return repr(one[0]) == repr(two[0]) and all(map(same_bits, one[1], two[1]))
