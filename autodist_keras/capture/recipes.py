"""Make the recipe of a large variable's first value: the numbers that its initializer draws as a whole.

In: an initializer of Keras, a shape and a type. Out: a `Recipe`, from which any part is drawn, or the value.

TensorFlow draws random numbers from a key and a counter. So a part of a value is drawn with a larger counter: the
initializer's graph runs with another counter and another shape. Initializers that compute more than a function of each
number, as `Orthogonal` does, and users' own are called as usual.

>>> import keras
>>> initializer, dtype = keras.initializers.HeNormal(seed=3), np.dtype("float32")
>>> recipe = recipe_of(initializer, (500, 40), dtype)
>>> np.array_equal(recipe.array(), initializer((500, 40), "float32"))
True
>>> recipe_of(keras.initializers.Orthogonal(seed=3), (500, 40), dtype) is None
True
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from autodist_core.runtime import Recipe

_DRAWS = {
    "StatelessRandomUniformV2": (1, 1), "StatelessRandomNormalV2": (1, 1), "StatelessTruncatedNormalV2": (256, 128),
}
"""How much the counter grows with 16 bytes of numbers, of float32 and of float64."""
_OF_EACH = {"Const", "Cast", "FloorMod", "StatelessRandomGetKeyCounter", "Sub", "Mul", "AddV2", "Identity", "Fill"}
_TRIED = (64, 64)
_SAME: dict[str, bool] = {}
"""Whether recipes of a kind of initializer give its numbers: a model has many variables of one kind."""


def first_value(initializer: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """What the initializer draws, or its recipe.

    >>> import keras
    >>> first_value(keras.initializers.Ones(), (2, 2), "float32").numpy().tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    of_numpy = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    if math.prod(shape) * of_numpy.itemsize >= Recipe.least_bytes:
        recipe = recipe_of(initializer, shape, of_numpy)
        if recipe is not None:
            kind = f"{type(initializer)} {dtype} { {**initializer.get_config(), 'seed': 0} }"
            if kind not in _SAME:
                _SAME[kind] = _same_numbers(initializer, of_numpy)
            if _SAME[kind]:
                return recipe
    return initializer(shape, dtype=dtype)


def _same_numbers(initializer: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a small value that is drawn by its recipe, in parts, has the numbers that the initializer draws.

    >>> import keras
    >>> _same_numbers(keras.initializers.Constant(np.arange(128)), np.dtype("float32"))
    False
    """
    try:
        recipe = recipe_of(initializer, _TRIED, dtype)
        assert recipe is not None
        return np.array_equal(recipe.array(999), initializer(_TRIED, dtype=dtype.name))
    except (ValueError, tf.errors.InvalidArgumentError):
        return False  # a constant with a shape of its own


def recipe_of(initializer: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Recipe | None:
    """The recipe of a value; None if the initializer does not draw each number by itself. The module has an example."""
    of_keras = type(initializer).__module__.startswith("keras.") and isinstance(getattr(initializer, "seed", 0), int)
    if not of_keras or dtype.name not in ("float32", "float64"):
        return None
    with tf.Graph().as_default() as graph, tf.compat.v1.Session():
        output = initializer(shape, dtype=dtype.name)
        nodes = graph.get_operations()
        draws = [node for node in nodes if node.type in _DRAWS]
        sizes = tuple(node.inputs[0].name for node in nodes if node in draws or node.type == "Fill")
        if not sizes or not {node.type for node in nodes} <= _OF_EACH | _DRAWS.keys():
            return None
        counters = {
            node.inputs[2].name: (node.inputs[2].eval(), _DRAWS[node.type][dtype.itemsize == 8]) for node in draws
        }
    return Recipe(shape, dtype, graph.as_graph_def(), output.name, sizes, counters)
