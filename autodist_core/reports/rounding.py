"""Tell rounding from other differences between two trainings.

In: the variables after a training on one device, and after the same training from weights that differ in their last
bit. Out: for each variable, the difference that rounding alone makes. `comparison.py` uses it.

Such a difference may be large. The gradient of a bias before batch normalization is zero, and so is the gradient of an
attention's key bias. The optimizer then applies the rounding of that zero. Such a variable differs between any two
trainings that round differently, also on one device.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

FACTOR = 32
"""The allowed difference, as a multiple of the difference by rounding. The latter is measured only once."""


def last_bits_changed(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The values with the last bit of every number changed, up or down by a fixed seed.

    >>> changed = last_bits_changed({"w": np.ones(3, "float32"), "steps": np.array(3)})
    >>> bool(np.all(changed["w"] != 1)), bool(np.allclose(changed["w"], 1)), changed["steps"].item()
    (True, True, 3)
    """
    draw = np.random.default_rng(0)

    def changed(value: np.ndarray) -> np.ndarray:
        if value.dtype.kind != "f":
            return value
        up = draw.integers(0, 2, value.shape, dtype=bool)
        bit = np.array(np.finfo(value.dtype).eps, value.dtype)
        return np.asarray(value * np.where(up, 1 + bit, 1 - bit), value.dtype)

    return {name: changed(value) for name, value in values.items()}


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference between two values of a variable, in units of the first one's largest entry.

    >>> difference(np.array([1.0, 4.0]), np.array([1.0, 5.0]))
    0.25
    """
    scale = float(np.max(np.abs(one))) or 1.0
    return float(np.max(np.abs(one.astype("float64") - other.astype("float64")))) / scale
