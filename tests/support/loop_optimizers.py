"""Ways to update variables in a loop of one's own: optimizers of three packages, and assignments by hand.

A way is made of variables, inside or outside a marked function. Called in a step with the loss as a function, it
computes gradients and applies them; it gives the loss.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
import tf_keras


class KerasWay:
    """An optimizer of Keras 3, or of tf_keras, and a tape."""

    def __init__(self, optimizer: Any, apply: bool = False) -> None:
        self.optimizer, self._apply = optimizer, apply

    def __call__(self, loss: Callable[[], Any], variables: Sequence[Any]) -> Any:
        """One step."""
        with tf.GradientTape() as tape:
            value = loss()
        gradients = tape.gradient(value, variables)
        if self._apply:
            self.optimizer.apply(gradients, variables)
        else:
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return value

    @property
    def variables(self) -> list[Any]:
        """The optimizer's variables."""
        return list(self.optimizer.variables)


class OfTensorFlow(KerasWay):
    """An optimizer that takes TensorFlow's variables."""

    def __call__(self, loss: Callable[[], Any], variables: Sequence[Any]) -> Any:
        """One step."""
        return super().__call__(loss, [getattr(variable, "value", variable) for variable in variables])


class V1(OfTensorFlow):
    """An optimizer of `tf.compat.v1.train`, and a tape."""

    @property
    def variables(self) -> list[Any]:
        """The optimizer's variables."""
        return list(self.optimizer.variables())


class V1Minimize(V1):
    """An optimizer of `tf.compat.v1.train` that computes the gradients itself."""

    def __call__(self, loss: Callable[[], Any], variables: Sequence[Any]) -> Any:
        """One step; the loss is computed once more, before it."""
        value = loss()
        self.optimizer.minimize(loss, var_list=[variable.value for variable in variables])
        return value


class V1Gradients(V1):
    """An optimizer of `tf.compat.v1.train`, and `tf.gradients`."""

    def __call__(self, loss: Callable[[], Any], variables: Sequence[Any]) -> Any:
        """One step."""
        value, own = loss(), [variable.value for variable in variables]
        self.optimizer.apply_gradients(zip(tf.gradients(value, own), own, strict=True))
        return value


class ByHand:
    """Assignments; rows of a table are scattered."""

    variables = ()

    def __call__(self, loss: Callable[[], Any], variables: Sequence[Any]) -> Any:
        """One step."""
        own = [variable.value for variable in variables]
        with tf.GradientTape() as tape:
            value = loss()
        for variable, gradient in zip(own, tape.gradient(value, own), strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                variable.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
            else:
                variable.assign_sub(0.1 * gradient)
        return value


_v1 = tf.compat.v1.train
WAYS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: KerasWay(keras.optimizers.SGD(0.1, momentum=0.9)),
    "adam": lambda: KerasWay(keras.optimizers.Adam(0.01), apply=True),
    "clipped": lambda: KerasWay(keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), global_clipnorm=0.5, use_ema=True,
    )),
    "tf_keras_sgd": lambda: OfTensorFlow(tf_keras.optimizers.SGD(0.1, momentum=0.9)),
    "tf_keras_adam": lambda: OfTensorFlow(tf_keras.optimizers.Adam(0.01)),
    "v1_adam": lambda: V1(_v1.AdamOptimizer(0.01)),
    "v1_momentum": lambda: V1Minimize(_v1.MomentumOptimizer(0.1, 0.9)),
    "v1_sgd": lambda: V1Gradients(_v1.GradientDescentOptimizer(0.1)),
    "by_hand": ByHand,
}
"""The ways by name; each gives a new one."""
