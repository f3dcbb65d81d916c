"""Compare a few steps over all replicas with the same steps on one device."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from autodist_keras.tracing import optimizers_of
from autodist_keras.variables import Entry, ModelVariables

TOLERANCE = {"float64": 1e-12, "float32": 1e-3, "float16": 5e-2, "bfloat16": 2e-1}


def verify(distributed: Any, x: Any, y: Any, steps: int) -> str:
    """Train `steps` steps both ways from the model's state, restore it, and return a table of differences.

    Raises a ValueError naming the variables that differ by more than rounding explains.
    """
    model = distributed.model
    _build(model, x)
    entries = _entries(model)
    start, compressors = _values(entries), distributed.compressor_state()
    try:
        for _ in range(steps):
            model.train_on_batch(x, y)
        alone = _values(entries)
        _restore(entries, start)
        for _ in range(steps):
            distributed.train_on_batch(x, y)
        together = _values(entries)
    finally:
        _restore(entries, start)
        distributed.set_compressor_state(compressors)
    return _table(entries, alone, together, steps, distributed.inexact)


def _build(model: Any, x: Any) -> None:
    """Create what is still missing of model and optimizers, so that both ways start from one complete state."""
    if not model.built:
        model(keras.tree.map_structure(lambda array: array[:1], x))
    for optimizer in optimizers_of(model):
        if not optimizer.built:
            optimizer.build(model.trainable_variables)


def _entries(model: Any) -> tuple[Entry, ...]:
    found = ModelVariables(model, optimizers_of(model)).entries
    return tuple(entry for entry in found if entry.spec.kind in ("model", "optimizer", "seed"))


def _values(entries: tuple[Entry, ...]) -> dict[str, np.ndarray]:
    return {entry.spec.name: np.array(entry.tf_variable.numpy()) for entry in entries}


def _restore(entries: tuple[Entry, ...], values: dict[str, np.ndarray]) -> None:
    for entry in entries:
        entry.tf_variable.assign(values[entry.spec.name])


def _table(
    entries: tuple[Entry, ...], alone: dict[str, np.ndarray], together: dict[str, np.ndarray], steps: int,
    inexact: tuple[str, ...],
) -> str:
    lines, wrong = [f"{steps} steps on one device and over all replicas; max|a-b| / max|a|:"], []
    width = max(len(entry.spec.name) for entry in entries)
    for entry in entries:
        name, dtype = entry.spec.name, entry.spec.dtype
        one, two = alone[name], together[name]
        if dtype not in TOLERANCE or one.size == 0:
            continue
        scale = float(np.max(np.abs(one))) or 1.0
        difference = float(np.max(np.abs(one.astype("float64") - two.astype("float64")))) / scale
        lines.append(f"  {name:{width}}  {difference:.1e}")
        if not difference <= TOLERANCE[dtype]:
            wrong.append(f"{name} ({difference:.1e}, {dtype} allows {TOLERANCE[dtype]:.0e})")
    if inexact:
        return "\n".join([*lines, *(f"  note: {note}" for note in inexact)])
    if wrong:
        raise ValueError(
            "training over replicas differs from one device in " + "; ".join(wrong) + ". Dropout and batch statistics "
            "of each replica differ by design (see plan()); anything else is a defect worth reporting."
        )
    return "\n".join(lines)
