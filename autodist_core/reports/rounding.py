"""Tell rounding from other differences between two trainings.

In: the variables after a training on one device, and after the same training from weights that differ in their last
bit. Out: for each variable, the difference that rounding alone makes. `comparison.py` uses it.

The last bit is that of the coarsest float type in which the step computes: a step that casts its float32 weights to
float16 rounds like float16, and does not see the last bit of a float32.

Such a difference may be large. The gradient of a bias before batch normalization is zero, and so is the gradient of an
attention's key bias. The optimizer then applies the rounding of that zero. Such a variable differs between any two
trainings that round differently, also on one device.
"""

from collections.abc import Mapping
from itertools import chain

import numpy as np
import tensorflow as tf

from autodist_core.step.graph_item import GraphItem
from autodist_core.step.index import StepIndex

FACTOR = 32
"""The allowed difference, as a multiple of the difference by rounding. The latter is measured only once."""


_LAST_BIT = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The types, from the finest to the coarsest, each with its last bit next to 1."""


def coarsest_type(item: GraphItem) -> str:
    """The coarsest float type in which a step computes gradients from its variables.

    >>> coarsest_type(GraphItem(()))
    'float64'
    """
    step = StepIndex.of(item)
    reached: set[str] = set()
    for name in step.in_order(step.cone(step.markers)):
        of_model = any(step.variables[touch.variable].kind == "model" for touch in step.touches.get(name, ()))
        if of_model or any(source in reached for source in step.sources(name)):
            reached.add(name)
    # Whichever functions run: a step's loops and branches compute in the types of the operations around them.
    functions = (node for function in step.graph.library.function for node in function.node_def)
    values = (value for node in chain(map(step.nodes.get, reached), functions) for value in node.attr.values())
    found = {kind for value in values for kind in (value.type, *value.list.type)}
    kinds = [kind for kind in _LAST_BIT if tf.as_dtype(kind).as_datatype_enum in found]
    return kinds[-1] if kinds else "float64"


def last_bits_changed(values: Mapping[str, np.ndarray], kind: str = "float64") -> dict[str, np.ndarray]:
    """The values with the last bit of every number changed, up or down by a fixed seed.

    It is the last bit of the type `kind`, where that is coarser than the value's own type.

    >>> changed = last_bits_changed({"w": np.ones(3, "float32"), "steps": np.array(3)})
    >>> bool(np.all(changed["w"] != 1)), bool(np.allclose(changed["w"], 1)), changed["steps"].item()
    (True, True, 3)
    """
    draw = np.random.default_rng(0)

    def changed(value: np.ndarray) -> np.ndarray:
        if value.dtype.kind != "f":
            return value
        up = draw.integers(0, 2, value.shape, dtype=bool)
        bit = np.array(max(np.finfo(value.dtype).eps, _LAST_BIT[kind]), value.dtype)
        return np.asarray(value * np.where(up, 1 + bit, 1 - bit), value.dtype)

    return {name: changed(value) for name, value in values.items()}


def made_by_change(start: np.ndarray, changed: np.ndarray, alone: np.ndarray, disturbed: np.ndarray) -> float:
    """What training makes of a change at its beginning, without that change itself; in units of `difference`.

    >>> made_by_change(np.array(1.0), np.array(1.5), np.array(2.0), np.array(2.5))
    0.0
    """
    if start.dtype.kind != "f":
        return difference(alone, disturbed)
    return difference(alone, disturbed.astype("float64") - (changed.astype("float64") - start))


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference between two values of a variable, in units of the first one's largest entry.

    >>> difference(np.array([1.0, 4.0]), np.array([1.0, 5.0]))
    0.25
    """
    scale = float(np.max(np.abs(one))) or 1.0
    return float(np.max(np.abs(one.astype("float64") - other.astype("float64")))) / scale
