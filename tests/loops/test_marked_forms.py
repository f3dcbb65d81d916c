"""What can be marked: functions, methods of all kinds, partial functions, objects; and what is refused."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from autodist_core.errors import CaptureError
from tests.support.loops import autodist

X = np.arange(10.0).reshape(5, 2)


class Scaled:
    """An object that can be called."""

    factor = 3.0

    def __call__(self, x):
        return self.factor * x


def _of_classes(front):
    class Model:
        factor = 3.0

        @staticmethod
        @front.function
        def of_none(x):
            return 3.0 * x

        @front.function
        @staticmethod
        def of_none_inside(x):
            return 3.0 * x

        @classmethod
        @front.function
        def of_class(cls, x):
            return cls.factor * x

        @front.function(whole=["shift"])
        @classmethod
        def of_class_inside(cls, x, shift=(0.0, 0.0)):
            return cls.factor * x + shift

    names = [name for name in vars(Model) if name.startswith("of_")]
    return [getattr(owner, name) for name in names for owner in (Model, Model())]


def test_each_kind_of_function_runs_over_the_replicas():
    with autodist() as front:
        marked = [
            *_of_classes(front), front.function(lambda x: 3.0 * x), front.function(Scaled()),
            front.function(Scaled().__call__), front.function(partial(lambda factor, x: factor * x, 3.0)),
            front.function(partial(lambda x, of: (x + of) * 1.5, of=X)),
        ]  # fmt: skip
        assert len(marked) == 13
        for function in marked:
            np.testing.assert_array_equal(function(X), 3.0 * X)
        for function in marked[:8]:
            assert "replica localhost:CPU:1" in function.plan(X)


def test_whole_names_keywords_that_the_function_takes_besides():
    with autodist() as front:

        @front.function(whole=["table"])
        def step(x, **named):
            return x * tf.reduce_sum(named["table"]) + named["shift"]

        found = step(X, shift=X, table=np.ones(3))
        np.testing.assert_array_equal(found, 4.0 * X)
        with pytest.raises(CaptureError, match="disagree on the number of examples"):
            step(X, shift=X, other=np.ones(3), table=np.ones(3))


async def _waits(x):
    return x


def _yields(x):
    yield x


async def _yields_later(x):
    yield x


@pytest.mark.parametrize("function, what", [
    (_waits, "_waits is an `async def` or a generator: it computes after the call"),
    (_yields, "_yields is an `async def` or a generator: it computes after the call"),
    (partial(_yields_later), "partial is an `async def` or a generator: it computes after the call"),
])  # fmt: skip
def test_a_function_that_computes_later_is_refused_where_it_is_marked(function, what: str):
    with autodist() as front, pytest.raises(CaptureError) as found:
        front.function(function)
    assert str(found.value).startswith(what) and "Write a plain `def`" in str(found.value)


def test_what_only_a_tf_function_has_is_refused_in_words():
    with autodist() as front:

        class Model:
            @front.function
            def step(self, x):
                return x

        for function in (Model().step, Model.step):
            with pytest.raises(AttributeError, match=r"has no get_concrete_function, as a tf.function"):
                function.get_concrete_function(tf.TensorSpec([None, 2]))
            with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
                function.no_such_name  # noqa: B018
