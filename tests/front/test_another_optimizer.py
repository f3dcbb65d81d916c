"""An optimizer that is set on the model, without `compile`, trains from the next call on."""

import keras

from tests.support.compare import assert_equally_trained
from tests.support.models import DENSE, even_data
from tests.support.training import QUIET, plain, train_distributed


def _other() -> keras.optimizers.Optimizer:
    return keras.optimizers.RMSprop(0.02, name="other")


def _fit(front, **options):
    data = even_data()
    return front.fit(data.x, data.y, **{**QUIET, "epochs": 2, **options}).history


def _plain(front, model):
    results = [_fit(front)]
    model.optimizer = _other()
    # Plain Keras goes on with the function that it traced, and with the old optimizer, unless it is told.
    model.make_train_function(force=True)
    return [*results, _fit(front)]


def test_an_optimizer_that_is_set_between_two_fits_trains_in_the_second():
    for where in ("front", "model"):
        def program(front, model, where=where):
            results = [_fit(front)]
            {"front": front, "model": model}[where].optimizer = _other()
            return [*results, _fit(front)]

        assert_equally_trained(plain(DENSE, _plain), train_distributed(DENSE, program))


class Sets(keras.callbacks.Callback):
    """Sets another optimizer in the middle of a fit."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.optimizer = _other()


def test_an_optimizer_that_is_set_within_a_fit_trains_from_the_next_call_on():
    def program(front, model):
        results = [_fit(front, callbacks=[Sets()])]
        assert model.optimizer.name == "other"
        return [*results, _fit(front)]

    assert_equally_trained(plain(DENSE, _plain), train_distributed(DENSE, program))
