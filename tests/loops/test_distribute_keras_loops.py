"""Keras's own loops under a strategy's scope are refused with the line to write, and change nothing."""

import keras
import numpy as np
import pytest

from autodist_core.errors import NotYetError
from autodist_keras import DistributedModel
from tests.support.distributed import replicas
from tests.support.models import stacked

X, Y = np.ones((7, 3)), np.ones((7, 1))
LOOPS = {
    "fit": lambda model: model.fit(X, Y, verbose=0),
    "evaluate": lambda model: model.evaluate(X, Y, verbose=0),
    "predict": lambda model: model.predict(X, verbose=0),
    "train_on_batch": lambda model: model.train_on_batch(X, Y),
    "test_on_batch": lambda model: model.test_on_batch(X, Y),
    "predict_on_batch": lambda model: model.predict_on_batch(X),
}


def compiled() -> keras.Model:
    return stacked(keras.Input((3,)), keras.layers.Dense(1), name="small")


def test_keras_loops_are_refused_and_what_the_message_says_works():
    outside = compiled()
    outside.fit(X, Y, verbose=0)
    with replicas(count=2) as strategy:
        with strategy.scope():
            model = compiled()
        before = [weight.numpy() for weight in (*model.weights, *outside.weights, *outside.optimizer.variables)]
        for loop in LOOPS.values():
            with pytest.raises(NotYetError, match=r"fit.*`dm = autodist_keras.DistributedModel\(model"):
                loop(model)
            with strategy.scope(), pytest.raises(NotYetError, match="DistributedModel"):
                loop(outside)
        after = [weight.numpy() for weight in (*model.weights, *outside.weights, *outside.optimizer.variables)]
        np.testing.assert_equal(before, after)
        made_inside = DistributedModel(model, strategy.autodist.resource_spec, "PS")
        with pytest.raises(ValueError, match=r"'small' was made under the scope of a ReplicaStrategy"):
            made_inside.fit(X, Y, verbose=0)
        with DistributedModel(outside, strategy.autodist.resource_spec, "PS") as dm:
            with strategy.scope(), pytest.raises(ValueError, match=r"'small' is used under the scope"):
                dm.fit(X, Y, verbose=0)
            assert len(dm.fit(X, Y, verbose=0).epoch) == 1
    assert len(outside.fit(X, Y, verbose=0).epoch) == 1
