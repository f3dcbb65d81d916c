"""Keras's own loops under a strategy with tf.distribute's methods: refused, with the line to write.

In: who calls the strategy. Out: a NotYetError if it is `fit`, `evaluate`, `predict` or one of their kin, of Keras 3 or
of tf_keras. These would count each replica's mean loss alike, however many examples it has. Keras's own loops run
exactly with `DistributedModel`.
"""

import inspect
from typing import Any

from autodist_core.errors import NotYetError

KERAS = ("keras", "tf_keras")


def refuse_calls_of(*packages: str, through: str = "") -> None:
    """Raise a NotYetError if code of these packages calls the method that calls this, directly or `through` another.

    Keras calls `run`, and asks for a scope and for distributed datasets, in its own loops only. Its optimizers
    call methods of TensorFlow that ask for the scope, too.

    >>> refuse_calls_of("keras")
    """
    frame = inspect.currentframe()
    while frame is not None and _root(frame.f_globals.get("__name__")) in ("autodist_core", through):
        frame = frame.f_back
    if frame is not None and _root(frame.f_globals.get("__name__")) in packages:
        raise NotYetError(
            "Keras's fit, evaluate, predict and train_on_batch do not run on a strategy of autodist_core.distribute: "
            "they would count the replicas' mean losses alike, however many examples each has. Make the model outside "
            "strategy.scope() and write `dm = autodist_keras.DistributedModel(model, resource_spec, strategy)`, with "
            "the arguments of distribute; dm.compile and dm.fit then give one device's numbers. Or write the loop "
            "yourself, with strategy.run."
        )


def _root(module: Any) -> str:
    return str(module or "").partition(".")[0]
