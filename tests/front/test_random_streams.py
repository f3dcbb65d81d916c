"""Every replica draws random numbers from a stream of its own, wherever the draw stands; replica 0 as one device.

All replicas draw the same where one device would draw the same for each slice of the batch.
"""

import re
from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.draws import EXPLICIT, FORMS, OF_ALL, Drawing, drawing_model, drawn
from tests.support.models import stacked
from tests.support.plans import as_name
from tests.support.training import distributed

STEPS = 3
Numbers = dict[str, list[np.ndarray]]


@cache
def _on_one_device() -> Numbers:
    model = drawing_model(FORMS)
    return drawn(model, model, 1, STEPS)


@cache
def _on_replicas(again: bool = False, **options) -> Numbers:
    model = drawing_model(FORMS)
    with distributed(model, **options) as front:
        return drawn(front, model, 2, STEPS)


def _second(numbers: Numbers, form: str) -> list[np.ndarray]:
    """What the second of two replicas drew."""
    return [both - first for both, first in zip(numbers[f"sum {form}"], numbers[f"first {form}"], strict=True)]


@pytest.mark.parametrize("form", FORMS)
def test_replica_0_draws_what_one_device_draws_bit_by_bit(form: str):
    for expected, actual in zip(_on_one_device()[f"first {form}"], _on_replicas()[f"first {form}"], strict=True):
        assert np.array_equal(expected, actual)


@pytest.mark.parametrize("form", sorted(OF_ALL))
def test_what_the_batch_has_no_part_in_is_drawn_alike_from_an_explicit_seed(form: str):
    numbers = _on_replicas()
    for first, second in zip(numbers[f"first {form}"], _second(numbers, form), strict=True):
        assert np.array_equal(first, second) and np.ptp(second) > 0


@pytest.mark.parametrize("form", sorted(FORMS.keys() - OF_ALL))
def test_the_second_replica_draws_numbers_of_its_own(form: str):
    numbers = _on_replicas()
    for first, second in zip(numbers[f"first {form}"], _second(numbers, form), strict=True):
        # Masks of ones and zeros agree in half of their entries.
        assert np.mean(np.abs(first - second) > 1e-9) > 0.2
        assert np.ptp(second) > 0, "nothing was drawn"
        # It is of the same kind: no number is out of the range by more than the first replica's range is wide.
        assert np.abs(second - np.mean(first)).max() < 3 * np.ptp(first)


@pytest.mark.parametrize("options", [{}, {"share_memory": True}], ids=["apart", "shared"])
def test_numbers_repeat_from_one_seed(options):
    expected, actual = _on_replicas(), _on_replicas(again=True, **options)
    for name, values in expected.items():
        assert np.array_equal(values, actual[name]), name


def test_three_replicas_draw_three_streams_and_an_idle_one_loses_no_place():
    """The last batch has one example: the other replicas compute nothing in it, and go on with the next epoch."""
    forms = {name: FORMS[name] for name in ("stateless", "seeds", "generator", "map", "deep")}

    class Shown(keras.layers.Layer):
        """Results in what is drawn for each example."""

        def __init__(self) -> None:
            super().__init__(name="shown")
            self.generator = tf.random.Generator.from_seed(11)
            self.seeds = keras.random.SeedGenerator(12)

        def call(self, x):
            return tf.concat([tf.cast(draw(self, x), x.dtype) for draw in forms.values()], axis=1)

    def predicted(examples: int, **options) -> np.ndarray:
        keras.utils.set_random_seed(4)
        model = keras.Sequential([keras.Input((5,)), Shown()])
        x = np.ones((examples, 5))
        if not options:
            return model.predict(x, batch_size=3, verbose=0)
        with distributed(model, **options) as front:
            return np.concatenate([front.predict(x, batch_size=9, verbose=0) for _ in range(2)])

    # Batches of three for each of three replicas, then of one for the first; and all of it once more.
    rows = predicted(10, replicas=3)
    starts = [0, 3, 6, 9, 10, 13, 16, 19]
    blocks = [rows[start] for start in starts]
    for index, one in enumerate(blocks):
        for other in blocks[index + 1 :]:
            # The forms with a constant seed draw the same in each step, and never the same on two replicas.
            same = np.isclose(one, other)
            assert not same[5:15].any(), "draws from a state repeat"
    for position in (0, 1, 2):
        assert len({blocks[position][0], blocks[position + 4][0]}) == 1, "a constant seed draws the same in each step"
    assert len({block[0] for block in blocks[:3]}) == 3


class _Binomial(keras.layers.Layer):
    """Draws by an operation that reads the generator's state itself."""

    def __init__(self, **arguments) -> None:
        super().__init__(**arguments)
        self.generator = tf.random.Generator.from_seed(3)

    def call(self, x):
        one = tf.ones(tf.shape(x)[1], x.dtype)
        noise = self.generator.normal(tf.shape(x), dtype=x.dtype)
        return x + noise + self.generator.binomial(tf.shape(x), one, one / 2, dtype=x.dtype)


def test_the_plan_says_which_operation_draws_the_same_on_all_replicas():
    model = stacked(keras.Input((3,)), _Binomial(name="coins"), keras.layers.Dense(1))
    x, y = np.ones((4, 3)), np.ones((4, 1))
    said = (
        "not exact: all replicas draw the same random numbers by StatefulRandomBinomial in coins: TensorFlow gives it "
        "no seed that could be another one for each replica (the draws of keras.random have one)"
    )
    with distributed(model) as front:
        plan, table = front.plan(x, y), front.verify(x, y)
    for text in (plan, table.rpartition("\nverdict: ")[0]):
        assert re.search(rf"\n  note( 1)?: {re.escape(said)}", text)
    own = "not exact: each replica draws its own random numbers in coins; replica 0 draws the numbers of one device"
    assert f"\n  note: {own}" in plan and own not in table, "verify gives both the same draws, where it can"
    with distributed(model, replicas=1) as front:
        assert "random numbers" not in front.plan(x, y)


def test_the_plan_says_that_metrics_draw():
    def broken_ties(y, predicted):
        return keras.ops.abs(y - predicted) + 1e-9 * tf.random.uniform(tf.shape(y), dtype=y.dtype)

    model = stacked(keras.Input((3,)), keras.layers.Dense(1), metrics=[broken_ties], jit_compile=False)
    with distributed(model) as front:
        plan = front.plan(np.ones((4, 3)), np.ones((4, 1)))
    assert "note: not exact: each replica draws its own random numbers in the metrics; replica 0" in plan


# A note names three layers at most.
IN_THREES = [tuple(FORMS)[start : start + 3] for start in range(0, len(FORMS), 3)]


@pytest.mark.quick("function, top, generator", "keras, stateless, map", "stateful switch, deep, stateful deep")
@pytest.mark.parametrize("forms", IN_THREES, ids=", ".join)
def test_the_plan_names_each_layer_that_draws(forms: tuple[str, ...]):
    names = [as_name(form) for form in forms]
    drawing = [Drawing({form: FORMS[form]}, name=name) for form, name in zip(forms, names, strict=True)]
    model = stacked(keras.Input((5,)), *drawing, keras.layers.Dense(1), jit_compile=False)
    with distributed(model) as front:
        plan = front.plan(np.ones((6, 5)), np.ones((6, 1)))
    explicit = [name for name, form in zip(names, forms, strict=True) if form in EXPLICIT]
    others = [name for name, form in zip(names, forms, strict=True) if form not in EXPLICIT | OF_ALL]
    said = [
        f"not exact: each replica draws its own random numbers in {', '.join(explicit)} from an explicit seed, and one "
        "device draws once for the whole batch",
        f"not exact: each replica draws its own random numbers in {', '.join(others)}; replica 0 draws the numbers of "
        "one device",
    ]
    notes = [line.removeprefix("  note: ") for line in plan.splitlines() if "random numbers" in line]
    assert notes == [note for note, drawing in zip(said, (explicit, others), strict=True) if drawing]
