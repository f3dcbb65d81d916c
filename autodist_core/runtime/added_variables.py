"""The variables that kernels added to a session's steps: each is set once, read and loaded by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.errors import SessionError
from autodist_core.kernel.added_variables import AddedVariable
from autodist_core.kernel.placement.devices import host_of


@dataclass(frozen=True)
class _Held:
    """A kept variable in the session's graph: what is fed to set it, what sets it, and its value."""

    kept: AddedVariable
    source: Any
    assign: Any
    value: Any


class KeptVariables:
    """The added variables of one session; graphs with fewer active replicas use the same ones."""

    def __init__(self, graph: Any, run: Callable[..., Any]) -> None:
        self._graph = graph
        self._run = run
        self._known: dict[str, _Held] = {}
        self._given: dict[str, np.ndarray] = {}

    def add(self, variables: Iterable[AddedVariable]) -> None:
        """Make variables, unless they are there; they start from what was loaded, else from their own start."""
        new = [kept for kept in variables if kept.name not in self._known]
        _check(new, self._given)
        with self._graph.as_default():
            for kept in new:
                dtype = tf.as_dtype(kept.dtype)
                with tf.device(host_of(kept.device)):
                    source = tf.compat.v1.placeholder(dtype, kept.shape)
                with tf.device(kept.device):
                    handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=kept.shape, shared_name=kept.name)
                    assign = tf.raw_ops.AssignVariableOp(resource=handle, value=source)
                    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
                self._known[kept.name] = _Held(kept, source, assign, value)
        self._set(new)

    def read(self) -> dict[str, np.ndarray]:
        """The value of each, by name; what was loaded and has no variable yet is as it was loaded."""
        if not self._known:
            return dict(self._given)
        values = self._run({name: held.value for name, held in self._known.items()})
        return self._given | {name: np.array(value) for name, value in values.items()}

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Set all of them: to these values, and to their start where there is none."""
        known = [held.kept for held in self._known.values()]
        _check(known, values)
        self._given = dict(values)
        self._set(known)

    def drop(self) -> None:
        """Let go of the session."""
        self._graph = None
        self._known.clear()
        self._given.clear()

    def _set(self, variables: Sequence[AddedVariable]) -> None:
        if variables:
            held = [self._known[kept.name] for kept in variables]
            values = [self._given.pop(kept.name, None) for kept in variables]
            feeds = {
                one.source: one.kept.initial() if value is None else value
                for one, value in zip(held, values, strict=True)
            }
            self._run([one.assign for one in held], feeds)


def _check(variables: Sequence[AddedVariable], values: Mapping[str, np.ndarray]) -> None:
    for kept in variables:
        value = values.get(kept.name)
        if value is not None and (value.shape, value.dtype.name) != (kept.shape, kept.dtype):
            raise SessionError(
                f"{kept} cannot be set to {value.dtype.name}{list(value.shape)}: the compressor state that was loaded "
                "is another model's."
            )
