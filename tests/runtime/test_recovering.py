"""The session that outlives its cluster, on sessions of one server whose calls fail when a test says so."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from autodist_core import GraphItem
from autodist_core.capture import capture
from autodist_core.errors import NodeLostError
from autodist_core.kernel import Placement
from autodist_core.runtime.example import ONE_SERVER, example_cluster
from autodist_core.runtime.recovery import backup
from autodist_core.runtime.recovery.recovering import RecoveringSession
from autodist_core.runtime.session import DistributedSession
from autodist_core.strategy import AllReduce
from tests.capture.plain import dense_step, dense_variables, spec_of, trace
from tests.kernel.graphs import placed

X = np.arange(12.0).reshape(4, 3) / 10
START = {"w": np.full((3, 2), 0.25), "b": np.zeros(2)}
LOST = NodeLostError("10.0.0.2", "its agent ended")
MOVING = "the moving of variables"


class Calls:
    """What sessions call: the variables they read and load, and the errors that calls still to come end with."""

    def __init__(self) -> None:
        self.read: list[tuple[str, ...]] = []
        self.loaded: list[list[str]] = []
        self._errors: list[tuple[str, BaseException, int]] = []

    def fail(self, doing: str, error: BaseException, after: int = 0) -> None:
        """Let a call that does this end with an error, after so many that do not."""
        self._errors.append((doing, error, after))

    def make(self, doing: str) -> None:
        for index, (expected, error, after) in enumerate(self._errors):
            if expected == doing:
                self._errors[index] = (expected, error, after - 1)
                if after == 0:
                    del self._errors[index]
                    raise error


class Fragile(DistributedSession):
    """A session of one server whose calls into TensorFlow are recorded and may fail."""

    def __init__(self, placement: Placement, calls: Calls) -> None:
        self._recorded = calls
        super().__init__(placement, example_cluster())

    def call(self, doing, call, *arguments):
        self._recorded.make(doing)
        found = super().call(doing, call, *arguments)
        self._recorded.make(f"the end of {doing}")
        return found

    def read_each(self, names):
        names = tuple(names)
        self._recorded.read.append(names)
        return super().read_each(names)

    def load(self, values):
        self._recorded.loaded.append(sorted(values))
        super().load(values)


def _items() -> tuple[GraphItem, GraphItem, GraphItem]:
    """A training step, one that writes nothing, and one that adds to a sum."""
    variables = {**dense_variables(), "sum": tf.Variable(np.zeros(()))}
    described = {"sum": spec_of("sum", variables["sum"], "metric", "sum")}
    trained = {name: variables[name] for name in ("w", "b")}

    def evaluating(tracer, x) -> list:
        variables["sum"].assign_add(tf.reduce_sum(x @ trained["w"]))
        return [tf.identity(x)]

    return (
        capture(trace(dense_step(trained), trained)),
        capture(trace(lambda tracer, x: [x @ variables["w"]], {"w": variables["w"]}, concat_outputs=True)),
        capture(trace(evaluating, variables, described=described, concat_outputs=True)),
    )


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture(autouse=True)
def nothing_is_due(monkeypatch):
    """The state becomes safe when a test says so, and not because time has passed."""
    monkeypatch.setattr(backup, "_LEAST_PAUSE", 3600.0)


@pytest.fixture
def recovering(calls):
    """Makes a session that recovers with a training step; it is closed in the end."""
    made: list[RecoveringSession] = []

    def make(restart: Callable[[NodeLostError], None] | None = None, safe: bool = False) -> tuple:
        item, *others = _items()
        made.append(RecoveringSession(
            lambda: Fragile(placed(item, AllReduce(), tasks=ONE_SERVER), calls), lambda error: None, restart,
        ))
        step = made[0].add(item)
        if safe:  # the state after a first step
            made[0].load(START)
            step([X], len(X))
            made[0].settle()
        return made[0], step, others

    yield make
    for session in made:
        session.close()


def _after(steps: int) -> np.ndarray:
    """The bias after so many steps on one device."""
    item, *_ = _items()
    session = DistributedSession(placed(item, AllReduce(), tasks=ONE_SERVER), example_cluster())
    step = session.add(item)
    session.load(START)
    for _ in range(steps):
        step([X], len(X))
    found = session.read(["b"])["b"]
    session.close()
    return np.array(found)


@pytest.mark.parametrize(
    "every, cost, pause", [(None, 0.001, 3600.0), (None, 100.0, 5000.0), (2.0, 100.0, 2.0), (0.0, 100.0, 0.0)]
)
def test_when_the_next_backup_is_due(monkeypatch, every, cost, pause):
    """After the seconds that the user wants, or else after a pause that lets it cost little."""
    now = 0.0

    def read(names):
        nonlocal now
        now += cost
        return ()

    monkeypatch.setattr(backup.time, "monotonic", lambda: now)
    kept = backup.Backup(every)
    kept.take(SimpleNamespace(read_each=read, read_added=dict))
    assert not kept.due
    kept.ran(backup.Ran(0, (X,), len(X)), training=True, written={"w"})
    assert kept.due == (pause == 0)
    now += pause / 2
    assert kept.due == (pause == 0)
    now += pause / 2
    assert kept.due


def test_a_node_that_is_lost_in_the_first_load_leaves_what_was_to_be_loaded(recovering, calls):
    session, step, _ = recovering()
    calls.fail(MOVING, LOST)
    session.load(START)
    with pytest.raises(NodeLostError, match=r"10\.0\.0\.2"):
        step([X], len(X))
    assert session.read(["b", "w"]).keys() == START.keys()
    np.testing.assert_array_equal(session.read(["w"])["w"], START["w"])


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_loss_that_a_look_met_is_raised_where_the_call_ends_or_by_the_next_step(recovering, calls, goes_on):
    session, step, _ = recovering(safe=True)
    step([X], len(X))
    calls.fail(MOVING, LOST)
    np.testing.assert_array_equal(session.read(["b", "w"])["b"], _after(1))
    with pytest.raises(NodeLostError, match=r"(?s)10\.0\.0\.2 was lost.*step 1; the 1 step since then is lost"):
        step([X], len(X)) if goes_on else session.settle()
    session.settle()


def test_an_interrupt_while_steps_are_repeated_leaves_the_last_safe_state(recovering, calls):
    session, step, _ = recovering(restart=lambda error: None, safe=True)
    for _ in range(3):
        step([X], len(X))
    calls.fail("training step 5", LOST)
    calls.fail("training step 2", KeyboardInterrupt())  # the second of the three that are done again
    with pytest.raises(KeyboardInterrupt) as interrupt:
        step([X], len(X))
    session.settle()
    found = session.read(["b", "w"])
    np.testing.assert_array_equal(found["b"], _after(1))
    assert "the model holds the state after training step 1" in str(interrupt.value.__notes__)


def test_a_load_that_was_interrupted_is_done_before_the_state_is_taken(recovering, calls):
    session, step, _ = recovering()
    session.load(START)
    step([X], len(X))
    session.load({"b": np.array([3.0, 4.0])})
    calls.fail(MOVING, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        step([X], len(X))
    session.settle()
    np.testing.assert_array_equal(session.read(["b"])["b"], [3.0, 4.0])


def test_repeated_steps_go_on_where_they_were(recovering, calls):
    """Loads between the steps are repeated too, in their order."""
    session, step, _ = recovering(restart=lambda error: None)
    session.load(START)
    step([X], len(X))
    session.load({"b": np.zeros(2), "w": START["w"]})
    step([X], len(X))
    calls.fail("training step 3", LOST)
    step([X], len(X))
    np.testing.assert_allclose(session.read(["b"])["b"], _after(2), rtol=1e-14)


def test_what_a_step_does_not_write_is_not_brought_home_again(recovering, calls):
    session, _, (predicting, evaluating) = recovering(safe=True)
    predict, evaluate = session.add(predicting), session.add(evaluating)
    session.load({"sum": np.zeros(())})
    predict([X], len(X))
    evaluate([X], len(X))
    calls.read.clear()
    session.settle()
    assert calls.read == [("sum",)]
    calls.read.clear()
    predict([X], len(X))
    session.settle()
    found = session.read(["b", "sum", "w"])
    assert calls.read == []
    np.testing.assert_array_equal(found["b"], _after(1))
    np.testing.assert_allclose(found["sum"], (X @ found["w"]).sum(), rtol=1e-14)


def test_a_value_that_the_session_has_is_not_loaded_again(recovering, calls):
    """Values are compared bit by bit: NaN is NaN, and -0.0 is not 0.0."""
    session, step, (predicting, _) = recovering(safe=True)
    predict = session.add(predicting)
    found = session.read(["b", "w"])
    for changes, expected in (
        ({}, []), ({"b": np.array([np.nan, 0.0])}, [["b"]]), ({"b": np.array([np.nan, -0.0])}, [["b"]]),
        ({"b": np.array([np.nan, -0.0])}, []),
    ):
        calls.loaded.clear()
        session.load({**found, **changes})
        predict([X], len(X))
        assert calls.loaded == expected
    session.load(found)
    step([X], len(X))
    np.testing.assert_array_equal(session.read(["b"])["b"], _after(2))


def test_a_step_that_ends_after_an_interrupt_counts(recovering, calls):
    """The machines have the state after the step. So the program gets that state, and not the safe one before it."""
    session, step, (_, evaluating) = recovering()
    session.load(START)
    evaluate = session.add(evaluating)
    session.load({"sum": np.zeros(())})
    step([X], len(X))
    session.settle()
    for run, doing in ((step, "training step 2"), (evaluate, "inference step 1")):
        calls.fail(f"the end of {doing}", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            run([X], len(X))
        session.settle()
    found = session.read(["b", "sum", "w"])
    np.testing.assert_array_equal(found["b"], _after(2))
    np.testing.assert_allclose(found["sum"], (X @ found["w"]).sum(), rtol=1e-14)
    session.load(found)
    step([X], len(X))
    np.testing.assert_array_equal(session.read(["b"])["b"], _after(3))
