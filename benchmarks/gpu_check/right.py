"""Part "right": one replica on the device equals plain Keras on the device."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_check.device import Device
from gpu_check.findings import Findings, require


def run(device: Device) -> None:
    """Float64 without XLA to 1e-12; float32, half precision and XLA to rounding; saving, and loops without fit."""
    device.set_up(exact=True)
    import keras

    from gpu_check import trainings

    found, cases = Findings("right"), trainings.all_cases(device.tiny)
    of_float32 = ("dense",) if device.tiny else ("dense", "attention", "RNN", "tables, Adam", "ResNet-20")

    def equal(name: str, allowed: float, jit_compile: Any = False) -> Mapping[str, Any]:
        case = cases[name]()
        expected = case.train(device, 0, jit_compile)
        return trainings.compared(expected, case.train(device, 1, jit_compile), allowed)

    for floatx, allowed in (("float64", trainings.EXACT), ("float32", 1e-3)):
        keras.config.set_floatx(floatx)
        for name in cases if floatx == "float64" else of_float32:
            found.check(f"{name}, {floatx}", lambda name=name, allowed=allowed: equal(name, allowed))
            if floatx == "float64" and name == "dense":
                found.check("AutoDist.function, float64", lambda: _loop(device, False))
                found.check("run of a tf.distribute strategy, float64", lambda: _loop(device, True))
                found.check("save and load", lambda: _saved(device))
    for name in ("dense",) if device.tiny else ("dense", "attention"):
        found.check(f"{name}, float32, jit_compile='auto'", lambda name=name: _auto(device, equal(name, 1e-3, "auto")))
    for policy, allowed in (("mixed_float16", 4e-3), ("mixed_bfloat16", 4e-2))[: 1 if device.tiny else 2]:
        found.check(policy, lambda policy=policy, allowed=allowed: _mixed(device, policy, allowed))


def _auto(device: Device, figures: Mapping[str, Any]) -> Mapping[str, Any]:
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile="auto")
    return require(model.jit_compile == device.is_gpu, "'auto' is XLA on a GPU only", {**figures, "xla": device.is_gpu})


def _mixed(device: Device, policy: str, allowed: float) -> Mapping[str, Any]:
    """With float16, one batch overflows: the step is left out, and the scale of the loss is halved."""
    import keras

    from gpu_check import trainings

    keras.config.set_dtype_policy(policy)
    scales = []
    try:
        case = trainings.of_tests("dense")
        x, y = case.x.copy(), case.y
        if policy == "mixed_float16":
            x[12] = 7e4
        case = trainings.Case(case.build, x, y, case.batch)
        both = [case.train(device, replicas) for replicas in (0, 1)]
        for each in both:
            scales.append([float(value) for name, value in sorted(each.optimizer.items()) if "dynamic_scale" in name])
        figures = trainings.compared(*(replace(each, result={}) for each in both), allowed)  # a loss overflows
        return require(
            scales[0] == scales[1] and bool(scales[0]) == (policy == "mixed_float16"), f"scales of the loss {scales}",
            {**figures, "scale of the loss": scales[1]},
        )
    finally:
        keras.config.set_dtype_policy("float32")


def _saved(device: Device) -> Mapping[str, Any]:
    """A model that was trained on the device is saved, and loaded as the same one."""
    import keras

    from autodist_keras import DistributedModel
    from gpu_check import trainings
    from tests.support.compare import in_order, relative_error

    case = trainings.of_tests("dense")
    model = case.build()
    with DistributedModel(model, device.spec(1)) as front:
        front.fit(case.x, case.y, batch_size=case.batch, verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            front.save(Path(folder) / "model.keras")
            loaded = keras.models.load_model(Path(folder) / "model.keras")
        one, other = (in_order(each.weights, each.optimizer.variables) for each in (model, loaded))
        same = all((one[name] == other[name]).all() for name in one)
        predicted = relative_error(front.predict(case.x, verbose=0), loaded.predict(case.x, verbose=0))
    return require(same and predicted < 1e-12, "other weights, or predictions", {"predictions": predicted})


def _loop(device: Device, with_run: bool) -> Mapping[str, Any]:
    """A loop of one's own, with `AutoDist.function` or with `run`, against the same loop in a `tf.function`."""
    import tensorflow as tf

    from autodist_core import AutoDist, ResourceSpec, distribute
    from tests.support.compare import relative_error
    from tests.support.loops import Net, batches, examples

    def train(wrap: Any) -> list[Any]:
        net = Net()

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = net.loss(x, y)
            net.descend(tape.gradient(loss, net.variables))
            return loss

        call = wrap(step)
        losses = [call(x, y) for x, y in batches(*examples())]
        return [*map(tf.convert_to_tensor, losses), *net.variables]

    spec = ResourceSpec(device.spec(1))
    expected = train(tf.function)
    if with_run:
        strategy = distribute(spec)
        with strategy.scope():
            actual = train(lambda step: lambda x, y: strategy.run(step, (x, y)))
    else:
        with AutoDist(spec) as front:
            actual = train(front.function)
    error = max(relative_error(a.numpy(), b.numpy()) for a, b in zip(expected, actual, strict=True))
    return require(error <= 1e-12, "they differ", {"error": error})
