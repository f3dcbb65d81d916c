"""Compare a few steps over all replicas with the same steps on one device.

In: a `DistributedModel` and data. Out: a table of differences, or a ValueError. Both trainings start from the model's
state, and the model gets this state back. `DistributedModel.verify` calls this module, and has an example.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from autodist_core.reports.comparison import Explanation, compare, require_steps
from autodist_core.reports.rounding import coarsest_type
from autodist_core.reports.step_plan import can_draw_as_one, drawn_anew
from autodist_keras.capture.hooks import hook
from autodist_keras.capture.optimizers import optimizers_of
from autodist_keras.capture.variables import ModelVariables
from autodist_keras.reports.first_batches import first_batches
from autodist_keras.training.exclusive import claimed


def verify(distributed: Any, given: Mapping[str, Any], steps: int) -> str:
    """Train `steps` steps both ways from the model's state, restore it, and return a table of differences.

    `DistributedModel.verify` has an example.
    """
    model, driver = distributed.model, distributed._driver
    driver.require_idle("verify")
    require_steps(steps)
    batches = first_batches("verify", model, driver, given, steps)
    with claimed(model, driver):
        # The capture makes the missing variables of model and optimizers. So both ways start from one complete state.
        captured = driver.captured_for(batches[0])
        entries = ModelVariables(model, optimizers_of(model)).entries
        compressors = distributed.compressor_state()
        strategy = driver.training.compile_strategy(captured.item)
        as_one = can_draw_as_one(captured.item, strategy, driver.settings.share_memory)

    def on_one_device() -> None:
        with claimed(model, driver), hook(model, "train_function", None):
            # Keras's own function, even if the user replaced it on the model.
            _train(model, partial(type(model).make_train_function, model), batches)

    explained: list[Explanation] = []
    jit_compile = model.jit_compile

    def over_replicas() -> None:
        with driver.drawing_as_one() if as_one else nullcontext():
            with driver.running("fit"):
                _train(model, model.make_train_function, batches)
            used = driver.captured or captured
            explained.append(Explanation(
                (*distributed.inexact, *drawn_anew(used.item)), (*used.other_notes, *used.notes.unknown),
                used.notes.reported if driver.settings.replicas > 1 else (), used.item,
            ))

    try:
        if as_one:
            model.jit_compile = False  # XLA draws other numbers
        return compare(
            entries, on_one_device, over_replicas, len(batches), explained.pop, lambda: coarsest_type(captured.item)
        )
    finally:
        model.jit_compile = jit_compile
        distributed.set_compressor_state(compressors)


def _train(model: Any, make_train_function: Callable[..., Any], batches: list[Any]) -> None:
    """Train on these batches with the function that Keras's loop would call."""
    make_train_function(force=True)
    feed = iter(batches)
    for _ in range(0, len(batches), model.steps_per_execution):
        model.train_function(feed)
