"""LG-FedAvg: the last layers are averaged, and all others are each client's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.fedavg import FedAvg
from protocols.partial_personalisation import LGFedAvg
from secagg.errors import ParameterError
from tests.protocols.baselines import assert_same_bits, quadratics, ran

CENTRES = np.random.default_rng(4).normal(size=(4, 6))
SHARED = slice(4, 6)


def lg(**chosen: Any) -> LGFedAvg:
    usual: dict[str, Any] = {"dim": 6, "clients": 4, "clip": 100.0, "shared_part": "-2:", "bits": 48}
    return LGFedAvg(**usual | chosen)


@pytest.mark.parametrize("weighted", [False, True])
def test_rounds_are_those_of_the_paper(weighted: bool) -> None:
    samples, start = [1, 2, 3, 4], np.arange(6.0)
    algorithm = lg(initial=start, weighted=weighted, cap=10)
    clients = quadratics(CENTRES, samples=samples, steps=3)
    run, channel = ran(algorithm, clients, 0)
    run.state = algorithm.start(start)
    models = np.tile(start, (4, 1))
    for _ in range(5):
        run.round()
        for _ in range(3):
            models = models - 0.1 * (models - CENTRES)
        models[:, SHARED] = np.average(models[:, SHARED], axis=0, weights=samples if weighted else None)
    assert run.model[SHARED] == pytest.approx(models[0, SHARED], abs=1e-9)
    for k, participant in channel.participants.items():
        assert participant.personal(run.model) == pytest.approx(models[k], abs=1e-9)


def test_only_the_shared_part_is_sent() -> None:
    (each,) = lg().sums()
    assert [part.size for part in each.spec.parts] == [2]
    assert each.lengths == {"shared": 2}
    assert_same_bits(lg(), quadratics(CENTRES))


def test_with_everything_shared_it_is_federated_averaging() -> None:
    """Up to rounding: sums of another kind are rounded by other streams."""
    usual: dict[str, Any] = {"dim": 6, "clients": 4, "clip": 100.0, "bits": 48, "weighted": False}
    whole = ran(lg(shared_part=":"), quadratics(CENTRES), 3)[0].model
    assert whole == pytest.approx(ran(FedAvg(**usual), quadratics(CENTRES), 3)[0].model, abs=1e-10)


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "shared_part must be set"), ("", "names no parameters"), ("output", "is no range")],
)
def test_parts_that_there_are_not(text: str | None, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        lg(shared_part=text)
