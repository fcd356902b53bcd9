"""lp-proj: the points that its penalties lead to, whole numbers summed exactly, how far one client gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.algorithm import AnyAlgorithm
from protocols.averaging import clipped
from protocols.lpproj import Agree, LpProj, LpProj1, LpProj2
from protocols.participant import Participant
from protocols.personal_model import OwnModel
from protocols.quadratic_learner import QuadraticLearner
from protocols.query_encoding import LARGEST, encode_query
from protocols.rounds import RoundInfo
from protocols.rsa import SIGNED_COUNTS
from protocols.run import Run
from protocols.serialisation import Vector, as_vector
from secagg.errors import CorruptTotal, MalformedMessage, ParameterError
from secagg.local_session import Stage
from secagg.sum_spec import Count, Total
from secagg.trust_levels import Trust
from sims.runtime import Setting, insecure_plain_sum
from tests.protocols.baselines import (
    Diverged,
    Learners,
    all_missing,
    assert_same_bits,
    missing,
    quadratics,
    ran,
)

DIM, SUB, CLIENTS = 12, 4, 5
CENTRES = np.random.default_rng(1).normal(size=(CLIENTS, DIM)) * 3
CURVATURES = np.array([0.5, 1.0, 2.0, 1.0, 0.7])
FIRST = np.random.default_rng(2).normal(size=DIM)
USUAL: dict[str, Any] = {
    "subspace": SUB,
    "pull": 2.0,
    "rounds": 3,
    "personal_steps": 4,
    "personal_rate": 0.1,
    "rate": 0.2,
}


def five() -> Learners:
    return quadratics(CENTRES, list(CURVATURES))


def lpproj(power: int, **other: Any) -> LpProj:
    if power == 1:
        return LpProj1(**{"dim": DIM, "clients": CLIENTS} | USUAL | other)
    return LpProj2(**{"dim": DIM, "clients": CLIENTS, "clip": 100.0, "bits": 56} | USUAL | other)


def run_from(algorithm: LpProj, learners: Learners, rounds: int, first: Vector = FIRST) -> Any:
    channel = insecure_plain_sum(algorithm, learners, Setting())
    run = Run(algorithm, channel, algorithm.start(first))
    assert all(run.round().completed for _ in range(rounds))
    return run, channel


def by_hand(algorithm: LpProj, rounds: int) -> tuple[Vector, Vector]:
    """The paper's Algorithm 1 with matrices, for all clients: the reference, and everybody's model."""
    p = algorithm.space.project(np.eye(DIM)).T
    psi = np.sign if algorithm.power == 1 else lambda v: v
    reference, models = np.zeros(SUB), np.tile(FIRST, (CLIENTS, 1))
    for _ in range(rounds):
        copies = np.tile(reference, (CLIENTS, 1))
        for k in range(CLIENTS):
            for _ in range(algorithm.rounds):
                for _ in range(algorithm.personal_steps):
                    slope = CURVATURES[k] * (models[k] - CENTRES[k])
                    slope = slope + algorithm.pull * p.T @ psi(p @ models[k] - copies[k])
                    models[k] = models[k] - 0.1 * slope
                copies[k] -= algorithm.rate * algorithm.pull * psi(copies[k] - p @ models[k])
        reference = (1 - algorithm.beta) * reference + algorithm.beta * copies.mean(axis=0)
    return reference, models


# --- where it leads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", ["dense", "fast"])
@pytest.mark.parametrize("beta", [1.0, 0.5])
@pytest.mark.parametrize("power", [1, 2])
def test_rounds_are_those_of_the_paper(power: int, beta: float, transform: str) -> None:
    algorithm = lpproj(power, beta=beta, transform=transform, initial=FIRST)
    run, channel = run_from(algorithm, five(), 6)
    reference, models = by_hand(algorithm, 6)
    assert run.state.reference == pytest.approx(reference, abs=1e-9)
    for k, participant in channel.participants.items():
        assert participant.personal(run.model) == pytest.approx(models[k], abs=1e-9)


def test_with_p_2_it_settles_where_the_penalty_says() -> None:
    """The reference is the mean of the projections of models that are best, given the reference."""
    algorithm = lpproj(2, rounds=1, personal_steps=12, personal_rate=0.25, rate=1.0)
    run, channel = run_from(algorithm, five(), 80, np.zeros(DIM))
    p = algorithm.space.project(np.eye(DIM)).T
    inverses = [np.linalg.inv(a * np.eye(DIM) + algorithm.pull * p.T @ p) for a in CURVATURES]
    # x_k = inverse (a c + pull P' w), and the sum of w - P x_k is zero.
    left = sum(np.eye(SUB) - algorithm.pull * p @ inverse @ p.T for inverse in inverses)
    right = sum(p @ inverses[k] @ (CURVATURES[k] * CENTRES[k]) for k in range(CLIENTS))
    reference = np.linalg.solve(left, right)
    assert run.state.reference == pytest.approx(reference, abs=1e-6)
    for k, participant in channel.participants.items():
        best = inverses[k] @ (CURVATURES[k] * CENTRES[k] + algorithm.pull * p.T @ reference)
        assert participant.personal(run.model) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("outlier", [None, 1e6])
def test_with_p_1_the_reference_goes_to_the_median_of_projections(outlier: float | None) -> None:
    """A client far from it votes as any other does. Near it, within the pull, no client is on either side."""
    centres = CENTRES.copy()
    if outlier is not None:
        centres[3] = outlier
    steps: dict[str, Any] = {"rounds": 1, "personal_steps": 4, "personal_rate": 0.5}
    algorithm = lpproj(1, **steps, pull=0.1, rate=2.0, orthonormal=True)
    run, _ = run_from(algorithm, quadratics(centres), 80, np.zeros(DIM))
    median = np.median(algorithm.space.project(centres), axis=0)
    assert run.state.reference == pytest.approx(median, abs=algorithm.pull + algorithm.step)


def test_without_anything_in_common_everybody_trains_alone() -> None:
    """Outside of the subspace nothing is pulled: what is orthogonal to it goes to each client's centre."""
    algorithm = lpproj(2, personal_steps=200, rounds=1)
    _, channel = run_from(algorithm, quadratics(CENTRES), 3, np.zeros(DIM))
    rows = np.linalg.qr(algorithm.space.project(np.eye(DIM)))[0]
    for k, participant in channel.participants.items():
        off = participant.memory.model - CENTRES[k]
        assert off - rows @ (rows.T @ off) == pytest.approx(np.zeros(DIM), abs=1e-8)
        assert np.abs(rows.T @ off).max() > 0.1


def test_the_common_model_is_the_first_one_moved_to_the_reference() -> None:
    algorithm = lpproj(2, initial=FIRST)
    run, _ = run_from(algorithm, five(), 4)
    assert algorithm.space.project(run.model) == pytest.approx(run.state.reference, abs=1e-9)
    moved = run.model - FIRST
    rows = np.linalg.qr(algorithm.space.project(np.eye(DIM)))[0]
    assert moved - rows @ (rows.T @ moved) == pytest.approx(np.zeros(DIM), abs=1e-9)
    assert np.linalg.norm(moved) > 0.1


def test_a_client_that_was_never_asked_has_the_common_model() -> None:
    algorithm = lpproj(1)
    assert algorithm.personal(OwnModel(), FIRST, five()[0]) is FIRST


# --- sums ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "rounds", "bits"), [(5, 3, 5), (10, 5, 7), (25, 5, 8), (100, 1, 8)])
def test_with_p_1_no_bit_is_sent_that_the_cohort_does_not_need(clients: int, rounds: int, bits: int) -> None:
    (spec,) = [each.spec for each in lpproj(1, clients=clients, rounds=rounds).sums()]
    (part,) = spec.parts
    assert (part.size, part.bits, part.bound) == (SUB, bits, Count(2 * rounds))
    assert 2 * rounds * clients < 2**bits <= 4 * rounds * clients


def test_with_p_1_sums_are_exact_over_secure_sums() -> None:
    algorithm = lpproj(1)
    run, _ = ran(algorithm, five(), 2, secure=True, trust=Trust.CURIOUS)
    steps = run.state.reference / (algorithm.step / CLIENTS)
    assert steps == pytest.approx(np.round(steps), abs=1e-9)
    assert_same_bits(algorithm, five())


@pytest.mark.parametrize("power", [1, 2])
def test_only_the_subspace_is_sent(power: int) -> None:
    algorithm = lpproj(power)
    payload = encode_query(RoundInfo(), Agree(as_vector(np.zeros(SUB))))
    assert len(payload) < 8 * SUB + 60
    ((name, values),) = (
        Participant(algorithm, five()[0], trust="curious_server")
        .answer(  # type: ignore[union-attr]
            "agree", payload, round_number=0, invited=CLIENTS
        )
        .items()
    )
    assert np.shape(values) == (SUB,)
    assert name == (SIGNED_COUNTS if power == 1 else "update")


def test_who_was_not_counted_keeps_its_model() -> None:
    for dropouts in (missing(2, Stage.MASK, 1), all_missing(1)):
        before = ran(lpproj(2), five(), 1)[1].participants[2].memory.model
        _, channel = ran(lpproj(2), five(), 2, dropouts=dropouts, dropout=0.4)
        assert (channel.participants[2].memory.model == before).all()


# --- how far one client gets ---------------------------------------------------------------------------


@pytest.mark.parametrize("centre", [1e3, 1e6, -1e9])
def test_with_p_1_a_wrong_client_moves_the_reference_by_its_whole_numbers_at_most(centre: float) -> None:
    algorithm = lpproj(1)
    honest, _ = run_from(algorithm, five(), 1)
    spoilt = five() | {0: QuadraticLearner(np.full(DIM, centre), rate=0.1)}
    wrong, _ = run_from(algorithm, spoilt, 1)
    limit = 2 * algorithm.rounds * algorithm.step / CLIENTS
    off = np.abs(wrong.state.reference - honest.state.reference)
    assert 0 < off.max() <= limit * (1 + 1e-12)


def test_with_p_2_it_moves_it_by_the_clip_at_most() -> None:
    algorithm = lpproj(2, clip=1.0)
    honest, _ = run_from(algorithm, five(), 1)
    spoilt = five() | {0: QuadraticLearner(np.full(DIM, 1e9), rate=0.1)}
    wrong, _ = run_from(algorithm, spoilt, 1)
    off = np.linalg.norm(wrong.state.reference - honest.state.reference)
    assert 0.1 < off <= 2 / CLIENTS * (1 + 1e-6)


def test_more_votes_than_there_are_spoil_the_round() -> None:
    algorithm = lpproj(1)
    most = 2 * algorithm.rounds * 3
    for votes in ([most + 1, 0, 0, 0], [0, 0, 0, 2**62]):
        steps = algorithm.round(algorithm.start(FIRST))
        next(steps)
        with pytest.raises(CorruptTotal, match="some client broke its bound"):
            steps.send(Total({SIGNED_COUNTS: np.array(votes, np.uint64)}, count=3, invited=3))


# --- queries of a server that is not honest ------------------------------------------------------------


def asked(algorithm: AnyAlgorithm, reference: Vector) -> Any:
    client = Participant(algorithm, five()[0], trust=Trust.CURIOUS)
    payload = encode_query(RoundInfo(), Agree(as_vector(reference)))
    return client.answer("agree", payload, round_number=0, invited=CLIENTS)


@pytest.mark.parametrize("power", [1, 2])
def test_references_of_another_length_or_size_are_refused(power: int) -> None:
    for length in (1, SUB - 1, SUB + 1, DIM):
        with pytest.raises(MalformedMessage, match=f"has {length} elements, not {SUB}"):
            asked(lpproj(power), np.zeros(length))
    with pytest.raises(MalformedMessage, match="numbers beyond"):
        asked(lpproj(power), np.full(SUB, 2 * LARGEST))


def test_far_references_get_no_more_than_whole_numbers_in_range() -> None:
    algorithm = lpproj(1)
    for sign in (-1.0, 1.0):
        votes = asked(algorithm, np.full(SUB, sign * LARGEST))[SIGNED_COUNTS]
        assert votes.dtype == np.uint64
        assert (votes == (2 * algorithm.rounds if sign > 0 else 0)).all()


@pytest.mark.parametrize("power", [1, 2])
def test_a_far_reference_lets_a_server_read_who_did_not_hear_of_it_only_with_p_2(power: int) -> None:
    algorithm = lpproj(power, orthonormal=True)
    clients = [Participant(algorithm, each, trust=Trust.CURIOUS) for each in five().values()]
    far, round_info = np.zeros(SUB), RoundInfo().next(completed=True)
    far[0] = LARGEST
    for client in clients[1:]:
        client.answer("agree", encode_query(RoundInfo(), Agree(far)), round_number=0, invited=CLIENTS)
        client.confirmed()
    payload = encode_query(round_info, Agree(np.zeros(SUB)))
    answers = [each.answer("agree", payload, round_number=1, invited=CLIENTS) for each in clients]
    (part,) = algorithm.spec().parts
    middle = algorithm.rounds if power == 1 else 0.0
    found = [np.asarray(each[part.name], float) - middle for each in answers if each is not None]
    parts = [clipped(each, 100.0)[1:] for each in found]
    is_read = np.allclose(sum(parts), parts[0], rtol=1e-6)
    assert is_read == (power == 2)
    if not is_read:
        algorithm.check_trust(Trust.MALICIOUS)
        return
    with pytest.raises(ParameterError, match="to prevent that, take lp-proj-1, or add noise"):
        algorithm.check_trust(Trust.MALICIOUS)


def test_a_client_whose_model_diverges_says_nothing() -> None:
    diverging = lpproj(1, personal_rate=1e140)
    with np.errstate(all="ignore"):
        assert asked(diverging, np.ones(SUB)) is None


@pytest.mark.parametrize("power", [1, 2])
def test_a_model_with_an_infinite_number_has_no_say_although_that_has_a_sign(power: int) -> None:
    algorithm = lpproj(power)
    client = Participant(algorithm, Diverged(CENTRES[0]), trust=Trust.CURIOUS)
    payload = encode_query(RoundInfo(), Agree(as_vector(np.ones(SUB))))
    with np.errstate(invalid="ignore"):
        assert client.answer("agree", payload, round_number=0, invited=CLIENTS) is None
    client.apply_history(RoundInfo().next(completed=True))
    assert client.memory.model is None


# --- parameters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("power", "chosen", "words"),
    [
        (1, {"subspace": None}, "subspace must be set"),
        (1, {"subspace": DIM + 1}, f"subspace must be at most {DIM}, the number of"),
        (1, {"subspace": 0}, "subspace must be a whole number from 1"),
        (1, {"public_seed": -1}, "public_seed must be"),
        (1, {"rounds": 0}, "rounds must be"),
        (1, {"personal_steps": 0}, "personal_steps must be"),
        (1, {"personal_rate": 0.0}, "personal_rate must be"),
        (1, {"pull": 0.0}, "pull must be"),
        (1, {"rate": -1.0}, "rate must be"),
        (1, {"beta": 0.0}, "beta must be"),
        (1, {"initial": np.ones(DIM - 1)}, f"initial must have as many numbers as the model, {DIM}"),
        (1, {"transform": "quick"}, "transform must be one of"),
        (1, {"transform": "fast", "orthonormal": True}, "power of two"),
        (2, {"clip": None}, "clip must be set"),
        (2, {"bits": 65}, "bits must be"),
    ],
)
def test_parameters_that_make_no_sense(power: int, chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        lpproj(power, **chosen)
