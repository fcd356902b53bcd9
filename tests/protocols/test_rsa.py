"""RSA: signs in the place of models, and a common model where as many clients are on either side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.averaging import Update
from protocols.participant import Participant
from protocols.personal_model import OwnModel
from protocols.quadratic_learner import QuadraticLearner
from protocols.query_encoding import LARGEST, encode_query
from protocols.rounds import RoundInfo
from protocols.rsa import RSA, SIGNED_COUNTS
from protocols.serialisation import as_vector
from secagg.errors import CorruptTotal, ParameterError
from secagg.sum_spec import Total
from secagg.trust_levels import Trust
from tests.protocols.baselines import Diverged, assert_same_bits, quadratics, ran

CENTRES = np.random.default_rng(3).normal(size=(5, 4)) * 2


def rsa(**chosen: Any) -> RSA:
    return RSA(**{"dim": 4, "clients": 5, "pull": 0.3, "rate": 0.1} | chosen)


@pytest.mark.parametrize("chosen", [{}, {"schedule": "sqrt"}, {"decay": 0.5}, {"steps": 3}], ids=str)
def test_rounds_are_those_of_the_paper(chosen: dict[str, Any]) -> None:
    algorithm = rsa(**chosen)
    run, channel = ran(algorithm, quadratics(CENTRES, rate=0.2), 30)
    common, models = np.zeros(4), np.zeros((5, 4))
    for t in range(1, 31):
        for _ in range(algorithm.steps or 1):
            models = models - 0.2 * (models - CENTRES + algorithm.pull * np.sign(models - common))
        slope = algorithm.pull * np.sign(common - models).sum(axis=0) + algorithm.decay * common
        common = common - 0.1 / (np.sqrt(t) if algorithm.schedule == "sqrt" else 1) * slope
    assert run.model == pytest.approx(common, abs=1e-9)
    for k, participant in channel.participants.items():
        assert participant.personal(run.model) == pytest.approx(models[k], abs=1e-9)


@pytest.mark.parametrize("outlier", [None, 1e8])
def test_the_common_model_goes_to_the_median(outlier: float | None) -> None:
    """Models stop `pull` short of their centres, on the side of the common one."""
    centres = CENTRES.copy()
    if outlier is not None:
        centres[1] = outlier
    run, channel = ran(rsa(schedule="sqrt", rate=0.3), quadratics(centres, rate=0.3), 60)
    assert run.model == pytest.approx(np.median(centres, axis=0), abs=0.35)
    for k, participant in channel.participants.items():
        off = participant.memory.model - centres[k]
        assert np.abs(off).max() < 0.3 + 1e-6 * (1 + abs(outlier or 0))


def test_a_client_moves_the_common_model_by_one_step_at_most() -> None:
    algorithm = rsa()
    honest = ran(algorithm, quadratics(CENTRES), 1)[0].model
    spoilt = quadratics(CENTRES) | {2: QuadraticLearner(np.full(4, -1e9))}
    off = np.abs(ran(algorithm, spoilt, 1)[0].model - honest)
    assert 0 < off.max() <= 2 * algorithm.rate * algorithm.pull * (1 + 1e-12)


def test_sums_are_of_few_bits_and_exact() -> None:
    (spec,) = [each.spec for each in rsa().sums()]
    assert [(part.size, part.bits) for part in spec.parts] == [(4, 4)]  # from 0 to 10
    run, _ = ran(rsa(), quadratics(CENTRES), 2, secure=True)
    steps = run.model / (0.1 * 0.3)
    assert steps == pytest.approx(np.round(steps), abs=1e-9)
    assert_same_bits(rsa(), quadratics(CENTRES))


def test_models_that_agree_with_the_common_one_do_not_vote() -> None:
    run, _ = ran(rsa(), quadratics(np.zeros((5, 4))), 3)
    assert (run.model == 0).all()


def test_a_far_model_from_the_server_gets_no_more_than_signs() -> None:
    client = Participant(rsa(), quadratics(CENTRES)[0], trust=Trust.MALICIOUS)
    payload = encode_query(RoundInfo(), Update(as_vector(np.array([LARGEST, -LARGEST, 0.0, 1.0]))))
    values = client.answer("update", payload, round_number=0, invited=5)
    assert values is not None
    assert np.asarray(values[SIGNED_COUNTS])[:2].tolist() == [2, 0]
    assert set(np.asarray(values[SIGNED_COUNTS]).tolist()) <= {0, 1, 2}


def test_a_model_with_an_infinite_number_has_no_say_although_that_has_a_sign() -> None:
    client = Participant(rsa(), Diverged(CENTRES[0]), trust=Trust.MALICIOUS)
    payload = encode_query(RoundInfo(), Update(as_vector(np.zeros(4))))
    assert client.answer("update", payload, round_number=0, invited=5) is None


def test_more_signs_than_clients_spoil_the_round() -> None:
    steps = rsa().round(rsa().start(np.zeros(4)))
    next(steps)
    with pytest.raises(CorruptTotal, match="more than all clients may send"):
        steps.send(Total({SIGNED_COUNTS: np.full(4, 7, np.uint64)}, count=3, invited=3))


def test_a_client_begins_with_the_common_model() -> None:
    model = as_vector([1.0, 2.0, 3.0, 4.0])
    assert rsa().personal(OwnModel(), model, quadratics(CENTRES)[0]) is model


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"pull": 0.0}, "pull must be"),
        ({"rate": 0.0}, "rate must be"),
        ({"decay": -1.0}, "decay must be"),
        ({"steps": 0}, "steps must be"),
        ({"schedule": "cubic"}, 'schedule must be "constant" or "sqrt"'),
    ],
)
def test_parameters_that_make_no_sense(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        rsa(**chosen)
