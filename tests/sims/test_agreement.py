"""How far clients agree, from what they trained last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sims.simulation.metric_observers import agreement


def crowd(samples: dict[int, int]) -> Any:
    class Clients(dict[int, Any]):
        latest: dict[int, Any] | None = None

    return Clients({client: SimpleNamespace(samples=count) for client, count in samples.items()})


def observed(clients: Any, *rounds: dict[int, list[float]], start: tuple[float, float] = (1.0, 1.0)) -> Any:
    """What is said after the last of the rounds, each of which leaves the model where it was."""
    observe: Any = agreement()
    run = SimpleNamespace(model=np.array(start))
    observe(1, run, None, clients)
    said = None
    for number, trained in enumerate(rounds, 2):
        clients.latest.update({client: np.array(own) for client, own in trained.items()})
        said = observe(number, run, None, clients)
    return said


def test_clients_who_all_go_the_same_way_agree() -> None:
    assert observed(crowd({1: 5, 2: 5}), {1: [2.0, 1.0], 2: [4.0, 1.0]}) == 1.0


def test_clients_at_right_angles_agree_by_half_a_right_angle() -> None:
    assert observed(crowd({1: 5, 2: 5}), {1: [2.0, 1.0], 2: [1.0, 2.0]}) == pytest.approx(0.7071)


def test_clients_count_by_their_samples() -> None:
    # The mean is (3, 1) / 4, and the cosines to it are 3 and 1 over the root of 10.
    assert observed(crowd({1: 3, 2: 1}), {1: [2.0, 1.0], 2: [1.0, 2.0]}) == pytest.approx(0.7906)


def test_who_did_not_train_in_a_round_is_left_out() -> None:
    first, second = {1: [2.0, 1.0], 2: [1.0, 2.0]}, {1: [5.0, 1.0]}
    assert observed(crowd({1: 5, 2: 5}), first, second) == 1.0
    assert observed(crowd({1: 5, 2: 5}), first, {}) is None


def test_what_has_no_direction_has_no_agreement() -> None:
    assert observed(crowd({1: 5, 2: 5}), {1: [1.0, 1.0], 2: [1.0, 1.0]}) == 0.0
    assert observed(crowd({1: 5}), {1: [np.inf, 1.0]}) is None
