"""PowerSGD: its factors, what they lose and what feedback makes up for, against the same arithmetic in numpy."""

import numpy as np
import pytest

from autodist_core.kernel import build
from autodist_core.runtime.local.session import LocalSession
from autodist_core.strategy import wire as strategy_wire
from autodist_core.strategy.synchronizers import AllReducePlan
from autodist_core.strategy.wire import FACTORS, Wire, wire
from tests.capture.plain import RATE
from tests.kernel.compressing import EXACT, Replicas, after_steps, kept, linear_item, power, sent_by
from tests.kernel.graphs import SHAPES, layered_item, layered_values, machine, placed, train
from tests.support.compare import assert_same


def in_numpy_by_powers(batches: list[np.ndarray], start: np.ndarray, cpus: int) -> tuple[np.ndarray, np.ndarray]:
    """PowerSGD by the definition: the variable, and the projection's rest that each replica keeps."""
    shape = batches[0].shape[1:]
    w, error, directions = np.zeros(shape), np.zeros((cpus, *shape)), start
    for batch in batches:
        wanted = np.stack([part.sum(axis=0) / len(batch) for part in np.array_split(batch, cpus)]) + error
        basis, _ = np.linalg.qr(wanted.sum(axis=0) @ directions)
        right = wanted.sum(axis=0).T @ basis
        error = wanted - basis @ (basis.T @ wanted)
        directions, _ = np.linalg.qr(right)
        w = w - RATE * basis @ right.T
    return w, error


@pytest.mark.parametrize("rank, cpus", [(1, 2), (2, 3)])
def test_powers_are_those_of_the_definition(rank: int, cpus: int):
    """A column's sign is nobody's business: it falls out of both products."""
    random = np.random.default_rng(21)
    batches = [random.normal(size=(size, 7, 6)) for size in (6, 5, 1, 2, 7)]
    with Replicas(linear_item((7, 6)), power(rank), cpus) as replicas:
        replicas.run(0.0 * batches[0])
        start = kept(replicas.session, "directions")
        assert (start == start[0]).all(), "all replicas start alike"
        w, error = in_numpy_by_powers(batches, start[0], cpus)
        np.testing.assert_allclose(replicas.run(*batches), w, rtol=0.0, atol=1e-12)
        np.testing.assert_allclose(kept(replicas.session, "error"), error, rtol=0.0, atol=1e-12)


def test_powers_do_not_depend_on_the_name_of_the_variable():
    """Keras numbers automatic names on, so the same model built again in one program has other names."""
    batch = np.random.default_rng(21).normal(size=(6, 7, 6))
    found = []
    for name in ("dense/kernel", "dense_1/kernel"):
        with Replicas(linear_item((7, 6), name=name), power(1)) as replicas:
            found.append(replicas.run(batch, batch))
    np.testing.assert_array_equal(*found)


@pytest.mark.quick("2-sizes1", "1-sizes3")
@pytest.mark.parametrize("rank, sizes", [(2, (2, 2, 2)), (2, (1, 2, 1)), (2, (2, 1, 2)), (1, (1, 1, 1))])
def test_a_rank_that_holds_the_whole_gradient_loses_nothing(rank: int, sizes: tuple[int, ...]):
    """The gradient of a matrix by so few examples has no higher rank."""
    item, values = layered_item(), layered_values()
    random = np.random.default_rng(5)
    batches = [random.normal(size=(size, 3)) for size in sizes]
    exact, found = (train(item, placed(item, each), values, batches) for each in (EXACT, power(rank)))
    assert len(sent_by(item, power(rank))) == 2, "one bucket of each round"
    assert_same({name: exact[name] for name in (*SHAPES, "scale")}, {name: found[name] for name in (*SHAPES, "scale")})


@pytest.mark.parametrize("rank", [3, 4, 100])
def test_full_rank_travels_as_it_is_and_is_exact(rank: int):
    item, values = layered_item(), layered_values()
    batches = [np.random.default_rng(6).normal(size=(7, 3))]
    exact, found = (train(item, placed(item, each), values, batches) for each in (EXACT, power(rank)))
    for name in (*SHAPES, "scale", "outputs"):
        np.testing.assert_array_equal(found[name], exact[name])


def _factors_of_full_rank(plan: AllReducePlan, shape: tuple[int, ...], dtype: str) -> Wire:
    """As nobody would send them: more numbers than the matrix has."""
    if len(shape) != 2:
        return wire(plan, shape, dtype)
    rank = min(shape)
    return Wire(FACTORS, dtype, ((shape[0], rank), (shape[1], rank)), feedback=True)


@pytest.mark.parametrize("cpus, active", [(2, 2), (3, 3), (3, 1)])
def test_factors_of_full_rank_are_exact_and_owe_nothing(cpus: int, active: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(strategy_wire, "wire", _factors_of_full_rank)
    item, values = layered_item(), layered_values()
    placement = placed(item, power(1), machine(cpus))
    batches = np.random.default_rng(23).normal(size=(4, active, 3))
    exact = train(item, placed(item, EXACT, machine(cpus)), values, list(batches))
    session = LocalSession(placement)
    session.add(item)
    session.load(values)
    step = session.import_graph(build(item, placement, active), "full")
    for batch in batches:
        step(*np.split(batch, active), *[1.0] * active, float(active))
    found, left = session.read(session.known), session.read_added()
    session.close()
    assert_same({name: exact[name] for name in (*SHAPES, "scale")}, {name: found[name] for name in (*SHAPES, "scale")})
    for name in SHAPES:
        # Of one replica's part something may lie outside the sum's columns; it is made up for by the others'.
        owed = [left[f"compressor/error/{name}@replica{index}"] for index in range(cpus)]
        assert np.abs(np.sum(owed, axis=0)).max() <= 1e-14


def test_one_direction_that_is_kept_finds_the_matrix():
    """The mean is of rank one and always the same: the first step finds its direction, whatever it starts from."""
    random = np.random.default_rng(7)
    target = np.outer(random.normal(size=8), random.normal(size=5))
    noise = random.normal(size=(4, 8, 5))
    batch = target + noise - noise.mean(axis=0)
    found = after_steps(power(1), batch, 10)
    np.testing.assert_allclose(found, -RATE * 10 * target, rtol=0.0, atol=1e-12)


def test_feedback_makes_up_for_directions_that_one_column_cannot_hold():
    """A gradient of rank three through one column: what is left behind comes in later steps."""
    random = np.random.default_rng(9)
    batch = random.normal(size=(4, 8, 3)) @ random.normal(size=(3, 5))
    mean, steps = batch.mean(axis=0), 150
    found = after_steps(power(1), batch, steps)
    assert np.abs(found + RATE * steps * mean).max() <= 0.05 * np.abs(RATE * steps * mean).max()


@pytest.mark.parametrize(
    "batch",
    [np.zeros((2, 6, 5)), np.ones((2, 6, 5)), np.eye(6, 5)[None] * np.array([1.0, 0.0])[:, None, None]],
    ids=["nothing", "rank one", "one replica only"],
)
def test_dependent_columns_are_no_division_by_zero(batch: np.ndarray):
    item = linear_item(batch.shape[1:])
    with Replicas(item, power(2)) as replicas:
        found = replicas.run(*[batch] * 5)
        values = replicas.session.read_added()
    assert np.isfinite(found).all() and all(np.isfinite(value).all() for value in values.values())
    if np.linalg.matrix_rank(batch.sum(axis=0)) <= 2:
        np.testing.assert_allclose(found, -RATE * 5 * batch.mean(axis=0), rtol=0.0, atol=1e-12)
