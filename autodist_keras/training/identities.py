"""On which objects of a model a captured step depends: after a change of one, the step is captured again.

In: a model. Out: an `Identity`, which is equal to an earlier one if the model still has the same objects.
"""

from typing import Any

from autodist_core.step.same import Same

Identity = tuple[Same, ...]
"""The objects on which a captured step depends."""


def of_compile(model: Any) -> Identity:
    """The optimizer, losses and metrics of a captured step. After another `compile` they are others, as in Keras.

    >>> import keras
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> before = of_compile(model)
    >>> model.compile("sgd", "mse")
    >>> of_compile(model) == before
    False
    """
    optimizer = model.optimizer if model.compiled else None
    return tuple(map(Same, (optimizer, model._compile_loss, model._compile_metrics, model._loss_tracker)))


_ADAPTED = ("lookup_table", "idf_weights_const", "mean", "variance", "bin_boundaries")
"""The attributes in which Keras's preprocessing layers keep what a traced step takes from them."""


def of_adapted(model: Any) -> Identity:
    """What the preprocessing layers of a model have learnt. After another `adapt` it is something else.

    >>> import keras
    >>> import numpy as np
    >>> normal = keras.layers.Normalization()
    >>> normal.adapt(np.zeros((2, 1)))
    >>> model = keras.Sequential([keras.Input((1,)), normal])
    >>> before = of_adapted(model)
    >>> normal.adapt(np.ones((2, 1)))
    >>> of_adapted(model) == before
    False
    """
    layers = [layer for layer in model._flatten_layers() if hasattr(layer, "adapt")]
    return tuple(Same(vars(layer).get(name)) for layer in layers for name in _ADAPTED)


def of_variables(model: Any) -> Identity:
    """The variables of a model. A layer that was replaced or quantized has others, possibly of the same names.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="head")])
    >>> before = of_variables(model)
    >>> model.pop()
    <Dense name=head, built=True>
    >>> model.add(keras.layers.Dense(1, name="head"))
    >>> of_variables(model) == before
    False
    """
    return tuple(Same(vars(variable)["_value"]) for variable in model.variables)
