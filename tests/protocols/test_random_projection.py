"""The random subspace: what makes it a projection, what a seed decides, and what it takes to hold."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import random_projection
from protocols.random_projection import MOST_HELD, Subspace
from protocols.serialisation import Vector
from secagg.errors import ParameterError

KINDS: list[dict[str, Any]] = [
    {"transform": "dense"},
    {"transform": "dense", "orthonormal": True},
    {"transform": "fast"},
]


DENSE = np.array(
    [
        [-0.31531032371201, 0.17782429344266, 0.51873143506443, -0.40792837413315, 0.65838443198130],
        [0.13538833427075, 0.04825499678237, -0.18489644363932, -0.60779705989573, -0.75877367728497],
    ]
)
SIGNS = [1, 1, -1, 1, 1, -1, -1, -1]
CHOSEN = [5, 3, 7]


def explicit(space: Subspace) -> Vector:
    """P, whose rows are the images of unit vectors."""
    return space.project(np.eye(space.dim)).T


def vectors(space: Subspace, seed: int = 0) -> tuple[Vector, Vector]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=space.dim), rng.normal(size=space.size)


@given(
    dim=st.integers(1, 70),
    part=st.floats(0, 1),
    seed=st.integers(0, 2**63 - 1),
    kind=st.sampled_from(KINDS[::2]),
)
@settings(deadline=None, max_examples=30)
def test_lifting_is_the_adjoint_of_projecting_and_rows_have_norm_1(
    dim: int, part: float, seed: int, kind: dict[str, Any]
) -> None:
    space = Subspace(dim=dim, size=max(1, int(part * dim)), seed=seed, **kind)
    x, y = vectors(space)
    assert space.project(x) @ y == pytest.approx(x @ space.lift(y), abs=1e-11)
    assert np.linalg.norm(explicit(space), axis=1) == pytest.approx(np.ones(space.size), abs=1e-12)


@pytest.mark.parametrize("kind", KINDS[::2], ids=str)
def test_a_stack_is_done_vector_by_vector(kind: dict[str, Any]) -> None:
    space = Subspace(dim=40, size=6, **kind)
    rng = np.random.default_rng(1)
    models, points = rng.normal(size=(2, 3, 40)), rng.normal(size=(2, 3, 6))
    for k in np.ndindex(2, 3):
        assert space.project(models)[k] == pytest.approx(space.project(models[k]), abs=1e-13)
        assert space.lift(points)[k] == pytest.approx(space.lift(points[k]), abs=1e-13)


@pytest.mark.parametrize("kind", KINDS[::2], ids=str)
def test_the_same_seed_is_the_same_subspace_and_another_one_is_not(kind: dict[str, Any]) -> None:
    space = Subspace(dim=50, size=7, seed=3, **kind)
    matrix = explicit(space)
    for each in (random_projection._held, random_projection._mixing):
        each.cache_clear()
    assert (explicit(Subspace(dim=50, size=7, seed=3, **kind)) == matrix).all()
    other = explicit(Subspace(dim=50, size=7, seed=4, **kind))
    assert np.abs(other @ matrix.T).max() < 0.7


def test_what_a_seed_makes_is_agreed_for_good() -> None:
    """Clients of other versions, and on other machines, must make the same P."""
    dense = explicit(Subspace(dim=5, size=2, seed=9))
    fast = Subspace(dim=8, size=3, seed=9, transform="fast").mixing()
    assert dense == pytest.approx(DENSE, abs=1e-12)
    assert fast is not None
    assert fast[0].tolist() == SIGNS
    assert fast[1].tolist() == CHOSEN


def test_dense_entries_are_normal_and_rows_nearly_orthogonal() -> None:
    space = Subspace(dim=20_000, size=20)
    matrix = space.matrix()
    assert matrix is not None
    entries = matrix.ravel() * np.sqrt(space.dim)
    assert entries.mean() == pytest.approx(0, abs=0.01)
    assert [np.mean(entries**k) for k in (2, 3, 4)] == pytest.approx([1, 0, 3], abs=0.05)
    shares = [np.mean(entries < edge) for edge in (-2, -1, 0, 1, 2)]
    assert shares == pytest.approx([0.02275, 0.15866, 0.5, 0.84134, 0.97725], abs=0.003)
    assert np.abs(matrix @ matrix.T - np.eye(20)).max() < 0.04


def test_a_matrix_that_is_not_held_is_made_again_with_the_same_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = Subspace(dim=100, size=9, seed=2, transform="dense")
    x, y = vectors(space)
    held = space.project(x), space.lift(y)
    monkeypatch.setattr(random_projection, "MOST_HELD", 10)
    monkeypatch.setattr(random_projection, "_BLOCK", 250)
    assert space.matrix() is None
    assert [len(rows) for _, rows in space.blocks()] == [2, 2, 2, 2, 1]
    assert space.project(x) == pytest.approx(held[0], abs=1e-13)
    assert space.lift(y) == pytest.approx(held[1], abs=1e-13)


def test_a_large_matrix_is_held_in_half_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = explicit(Subspace(dim=60, size=4, seed=6))
    monkeypatch.setattr(random_projection, "_EXACT", 100)
    random_projection._held.cache_clear()
    space = Subspace(dim=60, size=4, seed=6)
    held = space.matrix()
    assert held is not None
    assert held.dtype == np.float32
    assert explicit(space) == pytest.approx(exact, abs=1e-7)
    random_projection._held.cache_clear()


def test_rows_of_one_seed_do_not_depend_on_how_many_there_are() -> None:
    few, many = (explicit(Subspace(dim=30, size=size, seed=1)) for size in (3, 9))
    assert (many[:3] == few).all()


@pytest.mark.parametrize("dim", [16, 23])
def test_orthonormal_rows_span_the_same_space(dim: int) -> None:
    plain = explicit(Subspace(dim=dim, size=6, seed=5))
    rows = explicit(Subspace(dim=dim, size=6, seed=5, orthonormal=True))
    assert rows @ rows.T == pytest.approx(np.eye(6), abs=1e-12)
    assert plain @ rows.T @ rows == pytest.approx(plain, abs=1e-12)
    assert rows[0] == pytest.approx(plain[0], abs=1e-12)  # as Gram and Schmidt begin


# --- the fast transform --------------------------------------------------------------------------------


def test_the_fast_transform_is_signs_walsh_hadamard_and_a_choice() -> None:
    space = Subspace(dim=13, size=5, seed=8, transform="fast")
    mixing = space.mixing()
    assert mixing is not None
    signs, chosen = mixing
    assert set(signs.tolist()) <= {-1, 1}
    assert len(set(chosen.tolist())) == 5
    assert chosen.max() < space.width == 16
    walsh = np.array([[(-1) ** (i & j).bit_count() for j in range(16)] for i in range(16)])
    assert explicit(space) == pytest.approx(walsh[chosen, :13] * signs / np.sqrt(13), abs=1e-13)


def test_all_coordinates_can_be_chosen_and_are_as_likely() -> None:
    everything = Subspace(dim=32, size=32, transform="fast", orthonormal=True)
    assert explicit(everything) @ explicit(everything).T == pytest.approx(np.eye(32), abs=1e-12)
    counts = np.zeros(32)
    for seed in range(400):
        mixing = Subspace(dim=32, size=8, seed=seed, transform="fast").mixing()
        assert mixing is not None
        counts[mixing[1]] += 1
    assert 60 < counts.min() <= counts.max() < 140  # 100 each


def test_above_a_hundred_million_entries_it_is_fast_unless_forced() -> None:
    assert not Subspace(dim=1_000_000, size=100).is_fast
    assert Subspace(dim=1_000_000, size=101).is_fast
    assert not Subspace(dim=1_000_000, size=101, transform="dense").is_fast
    assert MOST_HELD == 100_000_000


def test_a_million_parameters_take_memory_for_a_few_models() -> None:
    space = Subspace(dim=1_000_000, size=1000)
    x, y = vectors(space)
    tracemalloc.start()
    try:
        assert space.project(x) @ y == pytest.approx(x @ space.lift(y))
        assert tracemalloc.get_traced_memory()[1] < 8 * 8 * space.dim
    finally:
        tracemalloc.stop()


# --- moved models --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chosen",
    [
        {"dim": 300, "size": 20},
        {"dim": 300, "size": 20, "transform": "fast"},
        {"dim": 8, "size": 8},
        {"dim": 1, "size": 1},
    ],
    ids=str,
)
def test_a_shift_is_the_shortest_with_its_projection(chosen: dict[str, Any]) -> None:
    space = Subspace(**chosen, seed=1)
    _, point = vectors(space)
    shift = space.shift(point)
    assert space.project(shift) == pytest.approx(point, rel=1e-7, abs=1e-9)
    best = np.linalg.lstsq(explicit(space), point, rcond=None)[0]
    assert shift == pytest.approx(best, rel=1e-6, abs=1e-8)
    assert not space.shift(np.zeros(space.size)).any()


@pytest.mark.parametrize(("dim", "size"), [(5, 4), (5, 5), (12, 12), (17, 16), (100, 99)])
@pytest.mark.parametrize("seed", range(5))
def test_a_shift_comes_near_where_rows_depend_on_each_other(dim: int, size: int, seed: int) -> None:
    space = Subspace(dim=dim, size=size, seed=seed, transform="fast")
    _, point = vectors(space)
    best = np.linalg.lstsq(explicit(space), point, rcond=1e-9)[0]
    assert space.shift(point) == pytest.approx(best, rel=1e-6, abs=1e-8)


# --- mistakes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"size": 0}, "size must be a whole number from 1 to 12"),
        ({"size": 13}, "size must be a whole number from 1 to 12"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"transform": "slow"}, "transform must be one of auto, dense, fast"),
        ({"orthonormal": 1}, "orthonormal must be true or false"),
        ({"transform": "fast", "orthonormal": True}, "only where dim is a power of two"),
        ({"dim": 1 << 20, "size": 17, "orthonormal": True}, "unset orthonormal"),
    ],
)
def test_subspaces_that_there_are_not(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        Subspace(**{"dim": 12, "size": 3} | chosen)


def test_vectors_of_another_length_are_refused() -> None:
    space = Subspace(dim=12, size=3)
    for length, use in ((11, space.project), (4, space.lift), (4, space.shift)):
        with pytest.raises(ParameterError, match="numbers is needed"):
            use(np.zeros(length))
    with pytest.raises(ParameterError, match="numbers is needed"):
        space.project(np.array(1.0))


def test_a_shift_ends_however_precise_it_should_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("protocols.random_projection._PRECISE", 0.0)
    space = Subspace(dim=40, size=7, seed=1)
    _, point = vectors(space)
    assert space.project(space.shift(point)) == pytest.approx(point, rel=1e-7, abs=1e-9)
