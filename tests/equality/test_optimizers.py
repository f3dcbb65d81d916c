"""Every optimizer that Keras ships, whole and in shards: in turns reduced everywhere and on servers."""

from collections.abc import Callable

import keras
import pytest

from tests.support.models import trained_by
from tests.support.training import assert_equal_training

KO = keras.optimizers


def _several() -> keras.optimizers.Optimizer:
    momentum, adam = KO.SGD(0.05, momentum=0.9, name="inner_sgd"), KO.Adam(0.01, name="inner_adam")
    return KO.MultiOptimizer(lambda variable: adam if "kernel" in variable.path else momentum, name="several")


OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "SGD": lambda: KO.SGD(0.1, name="o"),
    "RMSprop": lambda: KO.RMSprop(0.01, centered=True, name="o"),
    "Adam": lambda: KO.Adam(0.01, amsgrad=True, name="o"),
    "AdamW": lambda: KO.AdamW(0.01, weight_decay=0.1, name="o"),
    "Adadelta": lambda: KO.Adadelta(0.5, name="o"),
    "Adagrad": lambda: KO.Adagrad(0.1, name="o"),
    "Adamax": lambda: KO.Adamax(0.01, name="o"),
    "Adafactor": lambda: KO.Adafactor(0.02, name="o"),
    "Nadam": lambda: KO.Nadam(0.01, name="o"),
    "Ftrl": lambda: KO.Ftrl(0.1, l1_regularization_strength=0.01, name="o"),
    "Lion": lambda: KO.Lion(0.003, name="o"),
    "Lamb": lambda: KO.Lamb(0.01, name="o"),
    "Muon": lambda: KO.Muon(0.01, name="o"),
    "ScheduleFreeAdamW": lambda: KO.ScheduleFreeAdamW(0.01, warmup_steps=2, name="o"),
    "LossScaleOptimizer": lambda: KO.LossScaleOptimizer(KO.Adam(0.01, name="inner"), 4.0, 2, name="o"),
    "MultiOptimizer": _several,
}
ABSTRACT = {"Optimizer", "OptimizerMap"}


REFERENCES = {name: trained_by(make) for name, make in OPTIMIZERS.items()}


# The others train in the quick combinations of `test_matrix.py` and `test_rows.py`.
@pytest.mark.quick(
    "Adadelta-AllReduce", "Adamax-AllReduce", "Nadam-AllReduce", "Ftrl-PS", "Lamb-PS", "Muon-AllReduce",
    "ScheduleFreeAdamW-PS", "LossScaleOptimizer-AllReduce", "MultiOptimizer-PS",
)  # fmt: skip
@pytest.mark.parametrize(("name", "builder"), [
    (name, builder) for index, name in enumerate(OPTIMIZERS)
    for builder in (("AllReduce", "PartitionedPS"), ("PS", "PartitionedAR"))[index % 2]
])  # fmt: skip
def test_an_optimizer_equals_itself_on_one_device(name: str, builder: str):
    assert_equal_training(REFERENCES[name], strategy=builder, built=False)  # some name variables otherwise if built


def test_no_optimizer_is_left_out():
    shipped = {
        name for name, value in vars(keras.optimizers).items()
        if isinstance(value, type) and issubclass(value, keras.optimizers.Optimizer)
    }
    assert shipped - ABSTRACT == set(OPTIMIZERS)
