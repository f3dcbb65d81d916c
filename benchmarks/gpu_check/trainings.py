"""Small trainings whose weights are compared, in the floating-point type that Keras is set to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from workloads import WORKLOADS

from autodist_keras import DistributedModel
from gpu_check.device import Device
from gpu_check.findings import require
from tests.support.compare import Trained, assert_finite, worst_error
from tests.support.models import BY_NAME, ReferenceModel
from tests.support.training import seeded, trained

EXACT = 1e-12
"""The largest relative difference in float64."""


@dataclass(frozen=True)
class Case:
    """A model with its data, of the tests or of the benchmarks."""

    build: Callable[[], Any]
    """Makes the compiled model."""
    x: Any
    y: Any
    batch: int
    weight: Any = None
    mixes: bool = False
    """Whether batch statistics make two replicas differ from one device."""

    def train(
        self, device: Device, replicas: int = 0, jit_compile: Any = False, epochs: int = 2, **settings: Any
    ) -> Trained:
        """Train on so many replicas; 0 is plain Keras."""
        model = seeded(self.build)
        model.jit_compile = jit_compile
        x, y = keras.tree.map_structure(_cast, (self.x, self.y))
        options = {"batch_size": self.batch, "epochs": epochs, "shuffle": False, "verbose": 0}
        keras.utils.set_random_seed(1)
        if not replicas:
            history = model.fit(x, y, sample_weight=self.weight, **options).history
            where = model.weights[0].value.device
            assert not where or device.kind in where, f"plain Keras has its weights on {where}"
        else:
            with DistributedModel(model, device.spec(replicas), **settings) as front:
                history = front.fit(x, y, sample_weight=self.weight, **options).history
        return trained(model, history)


def _cast(array: Any) -> Any:
    """Numbers with a point in the type that Keras computes in, and others as they are."""
    return array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array


def of_tests(name: str, optimizer: str = "adam") -> Case:
    """A reference model of the tests."""
    reference: ReferenceModel = BY_NAME[name]

    def build() -> Any:
        model = reference.build()
        model.compile(**reference.compile_arguments(optimizer))
        return model

    data = reference.data()
    return Case(build, data.x, data.y, 8, data.sample_weight, mixes=name == "convolution")


def of_benchmarks(name: str) -> Case:
    """A workload of the benchmarks, on a few examples."""
    workload = WORKLOADS[name]
    x, y = workload.arrays()
    batch = 32
    x, y = keras.tree.map_structure(lambda array: array[: batch * 2], (x, y))
    return Case(lambda: workload.make(keras), x, y, batch, mixes=name == "resnet")


def _attention() -> Case:
    """Attention without biases: a key's bias has no gradient, and Adam makes something of its rounding."""
    layers = keras.layers

    def build() -> Any:
        rows = keras.Input((6, 4), name="rows")
        x = layers.MultiHeadAttention(2, 3, use_bias=False, name="attention")(rows, rows, use_causal_mask=True)
        x = layers.LayerNormalization(name="norm")(layers.Add(name="add")([rows, x]))
        model = keras.Model(rows, layers.Dense(1, name="out")(layers.Flatten(name="flat")(x)), name="attention")
        model.compile(keras.optimizers.Adam(0.01, name="adam"), "mse")
        return model

    x = np.random.default_rng(7).normal(size=(22, 6, 4))
    return Case(build, x, np.sin(x.sum(axis=(1, 2)))[:, None], 8)


def all_cases(tiny: bool) -> dict[str, Callable[[], Case]]:
    """The cases by what they stand for."""
    small = {"dense": lambda: of_tests("dense"), "custom step": lambda: of_tests("own_step")}
    return small if tiny else small | {
        "CNN": lambda: of_tests("convolution"), "RNN": lambda: of_tests("lstm"), "attention": _attention,
        "tables, Adam": lambda: of_tests("embedding"), "two optimizers": lambda: of_tests("adversarial"),
        "ResNet-20": lambda: of_benchmarks("resnet"), "transformer": lambda: of_benchmarks("transformer"),
    }  # fmt: skip


def compared(expected: Trained, actual: Trained, allowed: float) -> Mapping[str, Any]:
    """The largest relative difference of all weights, optimizer variables and results; more than allowed raises."""
    assert_finite(expected)
    error = worst_error(expected, actual)
    return require(error <= allowed, f"they differ by more than {allowed:g}", {"error": error})


def same_bits(one: Trained, other: Trained) -> Mapping[str, Any]:
    """Require that two trainings have left the same bits."""
    differ = [name for name, value in one.everything.items() if not np.array_equal(value, other.everything[name])]
    return require(not differ, f"other bits in {', '.join(differ[:5])}", {"tensors": len(one.everything)})
