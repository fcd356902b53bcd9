"""The chapter's least squares at full size: rounds and floors that were computed independently of this code.

25 users, 100 features, 5000 rows each, noise 0.25, step sizes 1e-5, 605 rounds; gaps of the mean of all z.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from sims.runtime import insecure_plain_sum, secure_sum
from tests.protocols.splitting_problem import SETTINGS, gaps, problem, rounds_to

pytestmark = pytest.mark.slow

ROUNDS = 605
ETA = 1e-5
ZERO = 1e-12  # of gaps that begin near 1e7

NAMES = {"fedavg": "splitting-fedavg", "fedprox": "splitting-fedprox"}


@cache
def run(name: str, steps: int | None = None, tau: int = 0, noise: float = 0.25) -> list[float]:
    setting = SETTINGS[NAMES.get(name, name)]
    return gaps(problem(noise), ROUNDS, eta=ETA, steps=steps, memory=tau, **setting)


PLAIN: list[tuple[str, int | None, float, float, float, int | None]] = [
    # name, local steps, gap after 10 and 50 rounds and at the end, rounds to 1e-6
    ("fedavg", 1, 2.13e6, 3.46e4, 0.0, 289),
    ("fedavg", 5, 3.49e4, 6.4e-4, 6.01e-4, None),
    ("fedavg", 100, 5.65e-2, 5.65e-2, 5.65e-2, None),
    ("fedprox", None, 2.24e6, 4.47e4, 1.365e-4, None),
    ("fedsplit", None, 7.98e5, 263.0, 0.0, 148),
    ("fedrp", None, 8.0e5, 265.0, 1.365e-4, None),
]


@pytest.mark.parametrize(("name", "steps", "ten", "fifty", "last", "rounds"), PLAIN)
def test_plain(
    name: str, steps: int | None, ten: float, fifty: float, last: float, rounds: int | None
) -> None:
    found = run(name, steps)
    assert found[9] == pytest.approx(ten, rel=5e-3)
    assert found[49] == pytest.approx(fifty, rel=5e-3)
    check_end(found, last, rounds)


ACCELERATED: list[tuple[str, int | None, float, float, int | None]] = [
    # name, local steps, gap after 10 rounds and at the end, rounds to 1e-6; with tau = 2
    ("fedavg", 1, 3.5e-7, 0.0, 10),
    ("fedavg", 5, 6.0e-4, 6.01e-4, None),
    ("fedavg", 100, 5.65e-2, 5.65e-2, None),
    ("fedprox", None, 1.365e-4, 1.365e-4, None),
    ("fedsplit", None, 20.0, 0.0, 46),
    ("fedrp", None, 1.364e-4, 1.365e-4, None),
]


@pytest.mark.parametrize(("name", "steps", "ten", "last", "rounds"), ACCELERATED)
def test_accelerated(name: str, steps: int | None, ten: float, last: float, rounds: int | None) -> None:
    found = run(name, steps, tau=2)
    assert found[9] == pytest.approx(ten, rel=2e-2)
    check_end(found, last, rounds)


def check_end(found: list[float], last: float, rounds: int | None) -> None:
    """Floors to three digits, numbers of rounds to two in a hundred."""
    assert found[-1] == pytest.approx(last, rel=1e-3, abs=ZERO)
    reached = rounds_to(1e-6, found)
    assert (reached is None) if rounds is None else reached == pytest.approx(rounds, rel=0.02)


@pytest.mark.parametrize(
    ("name", "steps", "floor"),
    [("fedavg", 5, 2.41e-3), ("fedavg", 100, 0.226), ("fedprox", None, 5.46e-4), ("fedrp", None, 5.46e-4)],
)
def test_floors_grow_with_the_square_of_the_noise(name: str, steps: int | None, floor: float) -> None:
    found, quarter = run(name, steps, noise=0.5)[-1], run(name, steps)[-1]
    assert found == pytest.approx(floor, rel=2e-3)
    assert found / quarter == pytest.approx(4, rel=1e-3)


@pytest.mark.parametrize(("first", "gap"), [(1e-3, 6.3e-6), (1e-2, 3.6e-4)])
def test_fedprox_with_vanishing_steps(first: float, gap: float) -> None:
    given = SETTINGS["splitting-fedprox"]
    found = gaps(problem(), ROUNDS, eta=first, schedule="linear", **given)
    assert found[-1] == pytest.approx(gap, rel=1.4e-2)  # two digits are known


@pytest.mark.parametrize("tau", [0, 2])
@pytest.mark.parametrize("name", ["fedsplit", "fedpi", "fedrp", "fedprox"])
def test_over_real_secure_sums_nothing_differs_in_any_bit(name: str, tau: int) -> None:
    given: dict[str, Any] = {"eta": ETA, "memory": tau, **SETTINGS[NAMES.get(name, name)]}
    rounds = 50 if name == "fedsplit" and tau else 12
    plain, secure = (gaps(problem(), rounds, make, **given) for make in (insecure_plain_sum, secure_sum))
    assert plain == secure
    if rounds == 50:
        assert rounds_to(1e-6, secure) == pytest.approx(46, rel=0.02)
