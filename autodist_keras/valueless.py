"""Build Keras models whose variables have no values, and so take no memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import keras

from autodist_core.training import without_value
from autodist_keras.seams import GLOBAL_ATTRIBUTE


@contextmanager
def without_values() -> Iterator[None]:
    """Build a model without values in a `with` block: to plan it, or to train one that is larger than the program.

    The layers must know their shapes, as after a `keras.Input`. `compile` stands outside of the block. `plan` needs no
    values. `fit` makes each variable's first value with its initializer, as Keras would have, and gives it to the
    machines, one after the other. Whoever looks at a variable before that gets its first value.

    >>> with without_values():
    ...     model = keras.Sequential([keras.Input((10**6,)), keras.layers.Dense(10**6, use_bias=False)])
    >>> model.count_params()
    1000000000000
    """
    waiting = GLOBAL_ATTRIBUTE.get()("uninitialized_variables", [], set_to_default=True)
    before = len(waiting)
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
        for variable in waiting[before:]:
            shape, make = tuple(variable.shape), partial(variable._initializer, variable.shape, dtype=variable.dtype)
            options = {"trainable": variable.trainable, "name": variable.name}
            variable._initialize(without_value(shape, variable.dtype, make, **options))
    finally:
        del waiting[before:]


def has_values(variables: object) -> bool:
    """Whether none of these variables waits for its first value.

    >>> has_values([keras.Variable(1.0)])
    True
    """
    return not any("make_first_value" in vars(variable.value) for variable in keras.tree.flatten(variables))
