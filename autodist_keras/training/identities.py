"""On which objects of a model a captured step depends: after a change of one, the step is captured again.

In: a model. Out: an `Identity`, which is equal to an earlier one if the model still has the same objects.
"""

from typing import Any

from autodist_core.step.same import Same

Identity = tuple[Same, ...]
"""The objects on which a captured step depends."""


_ADAPTED = ("lookup_table", "idf_weights_const", "mean", "variance", "bin_boundaries")
"""The attributes in which Keras's preprocessing layers keep what a traced step takes from them."""


def of_step(model: Any) -> Identity:
    """The optimizer, losses and metrics of a captured step, and what the preprocessing layers have learnt.

    After another `compile` or `adapt` they are others, as in Keras.

    >>> import keras
    >>> import numpy as np
    >>> normal = keras.layers.Normalization()
    >>> model = keras.Sequential([keras.Input((1,)), normal])
    >>> found = []
    >>> for change in (lambda: model.compile("sgd", "mse"), lambda: normal.adapt(np.ones((2, 1)))):
    ...     before = of_step(model)
    ...     change()
    ...     found.append(of_step(model) == before)
    >>> found
    [False, False]
    """
    optimizer = model.optimizer if model.compiled else None
    adapted = [layer for layer in model._flatten_layers() if hasattr(layer, "adapt")]
    learnt = (vars(layer).get(name) for layer in adapted for name in _ADAPTED)
    return tuple(map(Same, (optimizer, model._compile_loss, model._compile_metrics, model._loss_tracker, *learnt)))


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
