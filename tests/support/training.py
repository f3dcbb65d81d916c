"""One program run twice from one seed: by plain Keras on one device, and by the package on replicas of this process.

A *case* says which model is trained: a `ReferenceModel` of the tables, or a function that makes a compiled model.
A *program* says what is done with it. It takes what has `fit` and its siblings, and the Keras model behind that, and
returns numbers by name, nested as it likes. Without a program, `fit` trains on the reference model's own data.

    assert_equal_training(DENSE, optimizer="adam", strategy="PS", replicas=3)
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import keras
import numpy as np

from autodist_core.strategy import StrategyBuilder
from autodist_keras import DistributedModel
from tests.support.compare import TOLERANCE, Trained, assert_equally_trained, assert_same, flat, named
from tests.support.models import BATCH, Data, ReferenceModel, dense_data, even_data, ready
from tests.support.once import once
from tests.support.strategies import on_local_replicas

SEED = 20
EPOCHS = 3
QUIET = {"verbose": 0, "batch_size": BATCH, "shuffle": False}
"""What most calls of `fit` in tests have in common."""

Case = ReferenceModel | Callable[[], keras.Model]
Program = Callable[[Any, keras.Model], Any]


def seeded(build: Callable[[], keras.Model]) -> keras.Model:
    """The same model with the same initial weights and the same names, each time."""
    policy = keras.config.dtype_policy()
    keras.utils.clear_session(free_memory=False)
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(SEED)
    return build()


def compiled(case: Case, optimizer: str = "adam") -> keras.Model:
    """The case's model, the same each time, compiled with an optimizer of the table unless it brings its own."""
    if not isinstance(case, ReferenceModel):
        return seeded(case)
    return ready(seeded(case.build), **case.compile_arguments(optimizer))


def distributed(
    model: keras.Model, strategy: str | StrategyBuilder | None = None, *, replicas: int = 2, **settings
) -> DistributedModel:
    """The model on so many logical CPUs; every replica has a memory of its own unless told otherwise."""
    return DistributedModel(model, **on_local_replicas(strategy, replicas, settings))


def fit(front: Any, data: Data | None = None, **options) -> Mapping[str, np.ndarray]:
    """`fit` of even data for three epochs in the order of the data, unless told otherwise; History's numbers."""
    data = even_data() if data is None else data
    options = {**QUIET, "epochs": EPOCHS, **options}
    history = front.fit(data.x, data.y, sample_weight=data.sample_weight, **options).history
    return {name: np.asarray(values) for name, values in history.items()}


def everything(front: Any, model: keras.Model) -> dict[str, Any]:
    """Every method that runs a step, callbacks, a schedule, and two fits."""
    data, seen = dense_data(), []
    look = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs["loss"]))
    slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    first = front.fit(data.x, data.y, epochs=2, validation_split=0.2, callbacks=[look, slower], **QUIET).history
    second = front.fit(data.x, data.y, epochs=3, initial_epoch=2, **QUIET).history
    return {
        "first": first, "second": second, "seen": seen, "evaluate": front.evaluate(data.x, data.y, verbose=0),
        "predict": front.predict(data.x, verbose=0, batch_size=7),
        "on_batch": [front.train_on_batch(data.x[:rows], data.y[:rows]) for rows in (9, 1)],
        "test_on_batch": front.test_on_batch(data.x[:2], data.y[:2]),
        "predict_on_batch": front.predict_on_batch(data.x[:1]),
    }


def run(program: Program, front: Any, model: keras.Model) -> Trained:
    """What a program returns, and what it leaves in the model."""
    keras.utils.set_random_seed(SEED + 1)
    return trained(model, program(front, model))


def trained(model: keras.Model, result: Any = None) -> Trained:
    """What the model and all of its optimizers hold now, with a result."""
    optimizers = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
    variables = [variable for optimizer in optimizers for variable in optimizer.variables]
    return Trained(flat({} if result is None else result), named(model.weights), named(variables))


def train_plain(
    case: Case, program: Program | None = None, *, optimizer: str = "adam", replicas: int = 1, built: bool = True,
    data: Data | None = None, **options,
) -> Trained:
    """Run the program on one device with plain Keras.

    Where a reference model's batch statistics are each replica's own, one device computes as so many `replicas` would.
    A program that does not train leaves the optimizer unbuilt: say `built=False`.
    """
    if isinstance(case, ReferenceModel):
        case = case.on_one_device_as(replicas)
    model = compiled(case, optimizer)
    if isinstance(case, ReferenceModel) and built:
        build_all(model, data or case.data())
    return run(program or _fitting(case, data, options), model, model)


def train_distributed(
    case: Case, program: Program | None = None, *, optimizer: str = "adam",
    strategy: str | StrategyBuilder = "AllReduce", replicas: int = 2, share_memory: bool | None = False,
    fused_kernels: bool | None = None, data: Data | None = None, **options,
) -> Trained:
    """Run the program on replicas; `train_plain` of the same case and program is what it must equal."""
    model = compiled(case, optimizer)
    settings = {"replicas": replicas, "share_memory": share_memory, "fused_kernels": fused_kernels}
    with distributed(model, strategy, **settings) as front:
        return run(program or _fitting(case, data, options), front, model)


def assert_equal_training(
    case: Case, program: Program | None = None, *, optimizer: str = "adam",
    strategy: str | StrategyBuilder = "AllReduce", replicas: int = 2, share_memory: bool | None = False,
    fused_kernels: bool | None = None, built: bool = True, tolerance: float = TOLERANCE, data: Data | None = None,
    **options,
) -> Trained:
    """What the program returns, every weight and every optimizer variable is the same on one device and on replicas.

    Gives the plain outcome, for what a test wants to know besides.
    """
    same = {"optimizer": optimizer, "replicas": replicas}
    if data is None and not options:
        expected = plain(case, program, built=built, **same)
    else:
        expected = train_plain(case, program, built=built, data=data, **same, **options)
    actual = train_distributed(
        case, program, strategy=strategy, share_memory=share_memory, fused_kernels=fused_kernels, data=data, **same,
        **options,
    )
    assert_equally_trained(expected, actual, tolerance)
    return expected


def assert_same_numbers(
    program: Callable[[Callable[[keras.Model], Any]], Any], *, tolerance: float = TOLERANCE, **settings
) -> dict[str, np.ndarray]:
    """A program over several models returns the same numbers on one device and on replicas.

    It makes the models itself, and calls what it is given to make of each what has `fit`: the model itself, or a
    distributed one with these settings, closed afterwards.
    """
    outcomes = []
    for wrap in (nullcontext, lambda model: distributed(model, **settings)):
        keras.utils.clear_session(free_memory=False)
        with ExitStack() as fronts:
            outcomes.append(flat(program(_entering(fronts, wrap))))
    assert_same(outcomes[0], outcomes[1], tolerance)
    return outcomes[0]


def _entering(fronts: ExitStack, wrap: Callable[[keras.Model], AbstractContextManager]) -> Callable[[keras.Model], Any]:
    return lambda model: fronts.enter_context(wrap(model))


def plain(
    case: Case, program: Program | None = None, *, optimizer: str = "adam", replicas: int = 1, built: bool = True
) -> Trained:
    """The same as `train_plain`, computed once for each case and program."""
    return once(_train_plain, case, program, optimizer, replicas if getattr(case, "reference", None) else 1, built)


def _train_plain(case: Case, program: Program | None, optimizer: str, replicas: int, built: bool) -> Trained:
    return train_plain(case, program, optimizer=optimizer, replicas=replicas, built=built)


def _fitting(case: Case, data: Data | None, options: dict) -> Program:
    """The program that fits the case's data."""
    if data is None:
        assert isinstance(case, ReferenceModel), "a function that makes a model has no data: give a program, or data"
        data = case.data()
    return lambda front, model: fit(front, data, **options)


def build_all(model: keras.Model, data: Data) -> None:
    """Build what Keras builds while it traces a step, only to trace it once more: half of a short training's time."""
    if not model.built or type(model).train_step is not keras.Model.train_step:
        return
    with keras.name_scope(model.optimizer.name, caller=model.optimizer):
        model.optimizer.build(model.trainable_variables)
    x, y, weight = (
        keras.tree.map_structure(lambda array: array[:1], part) if part is not None else None
        for part in (data.x, data.y, data.sample_weight)
    )
    predicted = model(x)
    model.compute_loss(x, y, predicted, weight)
    model.compute_metrics(x, y, predicted, weight)
    model.reset_metrics()


def permuted_within_batches(data: Data, batch: int = BATCH) -> Data:
    """The same batches with their rows in another order: the same training but for rounding."""
    examples = len(keras.tree.flatten(data.x)[0])
    random = np.random.default_rng(3)
    starts = range(0, examples, batch)
    return data.rows(np.concatenate([random.permutation(np.arange(s, min(s + batch, examples))) for s in starts]))
