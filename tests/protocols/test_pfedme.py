"""pFedMe: the common and the personal points that Moreau envelopes lead to."""

from __future__ import annotations

import numpy as np
import pytest

from protocols.averaging import Update
from protocols.personal_model import OwnModel
from protocols.pfedme import PFedMe
from protocols.serialisation import as_vector, pack
from secagg.errors import ParameterError
from secagg.local_session import Stage
from tests.protocols.baselines import (
    Learners,
    all_missing,
    assert_same_bits,
    missing,
    quadratics,
    ran,
    settled,
)

CENTRES = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0]])
CURVATURES = np.array([1.0, 3.0, 0.5])
SAMPLES = [1, 2, 4]
PULL, RATE = 2.0, 0.2


def three() -> Learners:
    return quadratics(CENTRES, list(CURVATURES), samples=SAMPLES)


def pfedme(**other: object) -> PFedMe:
    settings: dict[str, object] = {
        "clip": 10.0,
        "pull": PULL,
        "rate": RATE,
        "steps": 60,
        "cap": 4,
        "bits": 48,
    }
    return PFedMe(dim=2, clients=3, **(settings | other))  # type: ignore[arg-type]


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_models_settle_where_the_envelopes_say(rounds: int, weighted: bool) -> None:
    # An envelope is b / 2 |w - c|^2 with b = pull * a / (pull + a). A local round shrinks w_i - c by this:
    shrink = 1 - 0.8 * PULL * CURVATURES / (PULL + CURVATURES)
    shares = (1 - shrink**rounds) * (SAMPLES if weighted else 1)
    common = np.average(CENTRES, axis=0, weights=shares)
    run, channel = ran(pfedme(rate=0.8, rounds=rounds, weighted=weighted), three(), 60 // rounds)
    assert run.model == pytest.approx(common, abs=1e-7)
    for k, participant in channel.participants.items():
        copy = CENTRES[k] + shrink[k] ** (rounds - 1) * (common - CENTRES[k])
        best = (CURVATURES[k] * CENTRES[k] + PULL * copy) / (CURVATURES[k] + PULL)
        assert participant.personal(run.model) == pytest.approx(best, abs=1e-7)


def test_a_few_steps_only_approximate_the_proximal_point() -> None:
    client = pfedme(rounds=1, steps=1, personal_rate=0.1).client(three()[1], OwnModel())
    answer = client.answer(Update(as_vector([1.0, 0.0])))
    # One step of rate 0.1 down the gradient (-9, 0), from the copy, which does not pull yet.
    assert client.memory().model == pytest.approx([1.9, 0.0])
    assert answer["update"] == pytest.approx([RATE * PULL * 0.9 * 0.5, 0.0])  # and half the weight


def test_theta_goes_on_where_it_was_in_the_local_round_before() -> None:
    client = pfedme(rounds=2, steps=1, personal_rate=0.1).client(three()[0], OwnModel())
    client.answer(Update(as_vector([1.0, 0.0])))
    # First theta 0.9 and w_i 0.96; then the gradient 0.9 and the pull 2 * (0.9 - 0.96).
    assert client.memory().model == pytest.approx([0.9 - 0.1 * (0.9 - 0.12), 0.0])


def test_decay_pulls_theta_towards_the_origin() -> None:
    client = pfedme(rounds=1, decay=0.5).client(three()[1], OwnModel())
    client.answer(Update(as_vector([1.0, 1.0])))
    # The minimiser of 3 / 2 |v - c|^2 + 2 / 2 |v - w|^2 + 0.5 / 2 |v|^2.
    assert client.memory().model == pytest.approx((3 * CENTRES[1] + 2 * np.ones(2)) / 5.5)


def test_the_server_moves_by_beta_times_the_mean() -> None:
    once, twice = (settled(pfedme(beta=beta), three(), 1) for beta in (1.0, 2.0))
    assert twice == pytest.approx(2 * once, abs=1e-9)


def test_who_has_no_model_of_its_own_uses_the_common_one() -> None:
    algorithm, model = pfedme(), as_vector([1.0, 2.0])
    assert algorithm.personal(algorithm.first_memory(), model, three()[0]) is model


def test_a_round_that_fails_leaves_personal_models_as_they_were() -> None:
    run, channel = ran(pfedme(), three(), 2, dropouts=all_missing(2, Stage.REVEAL))
    before = [pack(each.memory) for each in channel.participants.values()]
    assert not run.round().completed
    assert [pack(each.memory) for each in channel.participants.values()] == before


def test_only_who_was_counted_has_a_new_personal_model() -> None:
    run, channel = ran(pfedme(), three(), 2, dropouts=missing(1, Stage.MASK, 2))
    before = [pack(each.memory) for each in channel.participants.values()]
    assert run.round().clients == 2
    after = [pack(each.memory) for each in channel.participants.values()]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, False]


def test_secure_and_plain_sums_give_the_same_bits() -> None:
    assert_same_bits(PFedMe(dim=2, clients=3, clip=10.0), three())


def test_the_clip_must_be_set() -> None:
    with pytest.raises(ParameterError, match=r"clip must be set: .*such as"):
        pfedme(clip=None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pull": 0.0},
        {"rounds": 0},
        {"steps": 0},
        {"rate": 0.0},
        {"personal_rate": 0.0},
        {"beta": 0.0},
        {"decay": -1.0},
    ],
)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        pfedme(**wrong)
