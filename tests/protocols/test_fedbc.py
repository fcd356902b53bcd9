"""FedBC: its fixed points, what its paper and its program do, and what happens if nobody weighs anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.algorithm import AnyAlgorithm, ModelState
from protocols.fedavg import FedAvg
from protocols.fedbc import ConstraintState, FedBC, PerFedBC, fedbc_as_released
from protocols.learner import Learner
from protocols.quadratic_learner import QuadraticLearner
from protocols.rounds import Outcome, run_round
from protocols.run import RoundReport, Run
from protocols.serialisation import Vector, as_vector, pack, unpack
from secagg.errors import CorruptTotal, ParameterError, TooFewClients
from secagg.local_session import Stage
from secagg.sum_spec import Total
from secagg.trust_levels import Trust
from sims.runtime import DropoutSchedule, SessionChannel, Setting, insecure_plain_sum, no_dropouts, secure_sum

CLIENTS, DIM = 8, 6
GAMMA = 4.0
CLOSE = 1e-6

_draw = np.random.default_rng(3)
# The last two clients want nearly the same, so that they are near enough to the common model by themselves.
CENTRES: Vector = _draw.normal(scale=2.0, size=(CLIENTS, DIM)) * np.repeat([[1.0], [0.1]], [6, 2], axis=0)
CURVATURES: Vector = _draw.uniform(0.5, 2.0, size=(CLIENTS, DIM))
START: Vector = _draw.normal(size=DIM)

Make: TypeAlias = Callable[[AnyAlgorithm, dict[int, Learner], Setting], SessionChannel]


def _learners(*, rate: float = 0.1, steps: int) -> dict[int, Learner]:
    return {
        k: QuadraticLearner(CENTRES[k], CURVATURES[k], samples=k + 1, rate=rate, steps=steps)
        for k in range(CLIENTS)
    }


@dataclass
class _Ran:
    common: Vector
    bonds: list[ConstraintState]
    reports: list[RoundReport]

    @property
    def own(self) -> Vector:
        return np.array([bond.model for bond in self.bonds])

    @property
    def multipliers(self) -> Vector:
        return np.array([bond.multiplier for bond in self.bonds])


def _run(
    algorithm: AnyAlgorithm,
    learners: dict[int, Learner],
    *,
    rounds: int,
    make: Make = insecure_plain_sum,
    dropouts: DropoutSchedule = no_dropouts,
) -> _Ran:
    channel = make(algorithm, learners, Setting(insecure_seed=b"fedbc", dropouts=dropouts))
    run = Run(algorithm, channel, algorithm.start(START))
    reports = [run.round() for _ in range(rounds)]
    return _Ran(run.model, [each.memory for each in channel.participants.values()], reports)


def _bc(**settings: Any) -> FedBC:
    return FedBC(**{"dim": DIM, "clients": CLIENTS, "clip": 100.0, "lambda_max": 4.0, "bits": 48, **settings})


# --- fixed points ---


def test_with_a_fixed_gamma_the_kkt_conditions_hold() -> None:
    """They suffice: the problem is convex."""
    algorithm = _bc(alpha=0.1, gamma=GAMMA, gamma_step=0.0)
    secure, ran = (
        _run(algorithm, _learners(steps=20), rounds=60, make=make)
        for make in (secure_sum, insecure_plain_sum)
    )
    assert secure.common.tobytes() == ran.common.tobytes()
    assert [pack(bond) for bond in secure.bonds] == [pack(bond) for bond in ran.bonds]

    multipliers, gaps = ran.multipliers[:, None], ran.own - ran.common
    excess = np.sum(gaps**2, axis=1) - GAMMA
    stationary = CURVATURES * (ran.own - CENTRES) + 2 * multipliers * gaps
    np.testing.assert_allclose(stationary, 0.0, atol=CLOSE)
    np.testing.assert_allclose((multipliers * gaps).sum(axis=0), 0.0, atol=CLOSE)
    np.testing.assert_allclose(ran.multipliers * excess, 0.0, atol=CLOSE)
    assert excess.max() <= CLOSE
    assert ran.multipliers.min() == 0  # some constraints do not bind, others do, and no bound on them does
    assert np.sum(ran.multipliers > 0.05) >= 4
    assert ran.multipliers.max() < algorithm.most


def test_equal_and_constant_multipliers_make_it_fedprox() -> None:
    mu = 0.6
    one = _run(_bc(lambda_min=mu / 2, lambda_max=mu / 2, from_common=True), _learners(steps=4), rounds=5)
    other = FedAvg(dim=DIM, clients=CLIENTS, clip=100.0, weighted=False, mu=mu, bits=48)
    channel = insecure_plain_sum(other, _learners(steps=4), Setting())
    run = Run(other, channel, other.start(START))
    for _ in range(5):
        run.round()
    np.testing.assert_allclose(one.common, run.model, atol=1e-9)


# --- the paper's algorithm and the program's, in the open ---


def _descend(
    learner: Learner, start: Vector, common: Vector, multiplier: float, steps: int, rate: float
) -> Vector:
    """Algorithm 2."""
    model = start
    for _ in range(steps):
        model = model - rate * (learner.gradient(model) + 2 * multiplier * (model - common))
    return model


def _algorithm_1(rounds: int, *, alpha: float, gamma: float, gamma_step: float, top: float) -> _Ran:
    """As the paper has it, by a server that sees everything."""
    common, learners = START, _learners(steps=4)
    bonds = [ConstraintState(START, 0.0, gamma) for _ in learners]
    for _ in range(rounds):
        for k, bond in enumerate(bonds):
            assert bond.model is not None
            model = _descend(learners[k], bond.model, common, bond.multiplier, 4, 0.1)
            excess = float(np.sum((model - common) ** 2)) - bond.gamma
            multiplier = min(max(bond.multiplier + alpha * excess, 0.0), top)
            bonds[k] = ConstraintState(model, multiplier, bond.gamma + gamma_step * bond.multiplier)
        common = np.average([bond.model for bond in bonds], axis=0, weights=[b.multiplier for b in bonds])
    return _Ran(common, bonds, [])


def _program(rounds: int, *, rate: float) -> _Ran:
    """As the authors' program has it, but for the momentum that clients give each other."""
    common, learners = START, _learners(steps=4)
    bonds = [ConstraintState(START) for _ in learners]
    for _ in range(rounds):
        for k, bond in enumerate(bonds):
            model = _descend(learners[k], common, common, bond.multiplier, 4, 0.1)
            rise = 0.5 * bond.rise + float(np.sum((model - common) ** 2)) - bond.gamma
            widening = 0.5 * bond.widening + bond.multiplier
            multiplier = max(0.0, bond.multiplier + rate * rise)
            bonds[k] = ConstraintState(model, multiplier, bond.gamma + rate * widening, rise, widening)
        common = np.average([bond.model for bond in bonds], axis=0, weights=[b.multiplier for b in bonds])
    return _Ran(common, bonds, [])


def _assert_same(one: _Ran, other: _Ran) -> None:
    np.testing.assert_allclose(one.common, other.common, atol=1e-8)
    for a, b in zip(one.bonds, other.bonds, strict=True):
        assert a.model is not None
        assert b.model is not None
        np.testing.assert_allclose(a.model, b.model, atol=1e-8)
        for name in ("multiplier", "gamma", "rise", "widening"):
            assert getattr(a, name) == pytest.approx(getattr(b, name), abs=1e-8)


@pytest.mark.parametrize(("gamma", "gamma_step", "top"), [(0.0, 0.05, 4.0), (1.0, 0.0, 4.0), (0.0, 0.0, 0.2)])
def test_it_is_the_paper_s_algorithm(gamma: float, gamma_step: float, top: float) -> None:
    numbers: dict[str, Any] = {"alpha": 0.02, "gamma": gamma, "gamma_step": gamma_step}
    ran = _run(_bc(lambda_max=top, **numbers), _learners(steps=4), rounds=8)
    _assert_same(ran, _algorithm_1(8, **numbers, top=top))
    assert (ran.multipliers.max() == top) == (top < 1)


def test_as_released_it_is_the_authors_program() -> None:
    algorithm = fedbc_as_released(
        dim=DIM, clients=CLIENTS, clip=100.0, lambda_max=4.0, alpha=0.01, gamma_step=0.01, bits=48
    )
    _assert_same(_run(algorithm, _learners(steps=4), rounds=8), _program(8, rate=0.01))


def test_the_heuristic_widens_gamma_by_what_the_multipliers_were() -> None:
    algorithm = _bc(alpha=0.02, gamma_step=0.1)
    bonds = [_run(algorithm, _learners(steps=4), rounds=rounds).bonds[0] for rounds in (1, 2, 3)]
    assert bonds[0].gamma == 0.0
    assert bonds[1].gamma == pytest.approx(0.1 * bonds[0].multiplier)
    assert bonds[2].gamma == pytest.approx(0.1 * (bonds[0].multiplier + bonds[1].multiplier))


@given(
    excess=st.floats(0, 100),
    multiplier=st.floats(0.1, 2),
    gamma=st.floats(0, 50),
    momentum=st.sampled_from([0.0, 0.5]),
)
def test_multipliers_stay_between_their_bounds_and_gamma_never_falls(
    excess: float, multiplier: float, gamma: float, momentum: float
) -> None:
    algorithm = _bc(lambda_min=0.1, lambda_max=2.0, alpha=0.5, momentum=momentum)
    model = np.sqrt(excess / DIM) * np.ones(DIM)
    bond = ConstraintState(None, multiplier, gamma)
    for _ in range(3):
        after = algorithm.next_constraint(bond, model, np.zeros(DIM))
        assert 0.1 <= after.multiplier <= 2.0
        assert after.gamma > bond.gamma
        assert after == replace(after, model=model)
        bond = after


# --- what nobody weighs, and what weighs next to nothing ---


def test_where_no_constraint_binds_the_model_stays_and_clients_go_on() -> None:
    algorithm = _bc(gamma=1e6, gamma_step=0.0)
    ran = _run(algorithm, _learners(steps=4), rounds=2)
    assert np.array_equal(ran.common, START)
    for report in ran.reports:
        assert report.completed
        assert report.facts == {"multiplier": 0.0, "kept": "every multiplier is zero"}
    alone = [learner.train(learner.train(START)) for learner in _learners(steps=4).values()]
    np.testing.assert_array_equal(ran.own, alone)


def _outcome(weight: float, update: float) -> Outcome[ModelState]:
    algorithm = _bc(clip=10.0)
    total = Total({"update": np.full(DIM, update), "multiplier": np.array([weight])}, CLIENTS, CLIENTS)
    return run_round(algorithm.round(algorithm.start(START)), lambda _query: total)


def test_totals_that_are_mere_rounding_cannot_throw_the_model_away() -> None:
    moved = _outcome(1e-15, 1e-9)
    assert np.linalg.norm(moved.state.model - START) == pytest.approx(10.0)
    assert moved.facts["moved"] == pytest.approx(10.0)


def test_a_total_below_zero_is_no_total() -> None:
    with pytest.raises(CorruptTotal, match="multipliers"):
        _outcome(-0.1, 0.0)


def test_facts_say_the_mean_multiplier() -> None:
    ran = _run(_bc(alpha=0.02), _learners(steps=4), rounds=3)
    assert ran.reports[-1].facts["multiplier"] == pytest.approx(ran.multipliers.mean(), abs=1e-9)


# --- personal models ---


def test_a_model_is_fine_tuned_on_training_data_before_it_is_used() -> None:
    learner = _learners(steps=4)[0]
    bond = ConstraintState(as_vector(START))
    assert _bc().personal(bond, np.zeros(DIM), learner) is bond.model
    np.testing.assert_array_equal(
        _bc(fine_tune=2).personal(bond, np.zeros(DIM), learner), learner.train(START, steps=2)
    )
    np.testing.assert_array_equal(_bc().personal(ConstraintState(), START, learner), START)


def _per(**settings: Any) -> PerFedBC:
    bounds: dict[str, Any] = {"clip": 100.0, "lambda_max": 4.0, "bits": 48}
    return PerFedBC(**{"dim": DIM, "clients": CLIENTS, **bounds, **settings})


def test_per_fedbc_looks_ahead() -> None:
    algorithm = _per(inner_steps=2, inner_rate=0.05, outer_rate=0.2)
    learner, common, multiplier = _learners(steps=3)[0], np.ones(DIM), 0.4
    model = START
    for _ in range(3):
        ahead = _descend(learner, model, common, multiplier, 2, 0.05)
        model = model - 0.2 * learner.gradient(ahead)
    np.testing.assert_allclose(algorithm.train(learner, START, common, multiplier), model, rtol=1e-12)
    used = algorithm.personal(ConstraintState(as_vector(model)), common, learner)
    np.testing.assert_array_equal(used, learner.train(model, steps=1, rate=0.05))
    assert _per(fine_tune=0).personal(ConstraintState(), common, learner) is common


def test_per_fedbc_comes_to_models_that_are_best_after_their_step() -> None:
    """Where clients stop, the plain loss is least one step ahead; z is the mean, weighted as ever."""
    rate = 0.1
    algorithm = _per(lambda_max=0.5, alpha=0.2, gamma=GAMMA, gamma_step=0.0, inner_rate=rate, outer_rate=0.3)
    secure, ran = (
        _run(algorithm, _learners(steps=40), rounds=20, make=make)
        for make in (secure_sum, insecure_plain_sum)
    )
    assert secure.common.tobytes() == ran.common.tobytes()
    weights, kept = ran.multipliers[:, None], 1 - rate * CURVATURES
    away = kept / (kept - 2 * rate * weights) * (CENTRES - ran.common)
    np.testing.assert_allclose(ran.own, ran.common + away, atol=CLOSE)
    np.testing.assert_allclose((weights * away).sum(axis=0), 0.0, atol=CLOSE)
    assert ran.multipliers.max() == 0.5


# --- who is absent, and what is left of a round that fails ---


def _session(dropouts: DropoutSchedule) -> tuple[Run[ModelState], SessionChannel]:
    algorithm = _bc(alpha=0.02)
    channel = secure_sum(algorithm, _learners(steps=4), Setting(dropout=0.3, dropouts=dropouts))
    return Run(algorithm, channel, algorithm.start(START)), channel


def _bonds(channel: SessionChannel) -> list[ConstraintState]:
    return [each.memory for each in channel.participants.values()]


def test_who_is_absent_keeps_its_model_and_its_multiplier() -> None:
    run, channel = _session(lambda k, stage, number, _sum: k == 2 and stage is Stage.MASK and number == 1)
    assert run.round().clients == CLIENTS
    before = _bonds(channel)
    assert run.round().clients == CLIENTS - 1
    for k, (old, new) in enumerate(zip(before, _bonds(channel), strict=True)):
        assert (new is old) == (k == 2)


def test_a_round_that_fails_leaves_everybody_as_it_was() -> None:
    run, channel = _session(lambda k, stage, number, _sum: k > 1 and stage is Stage.REVEAL and number == 1)
    run.round()
    before, common = _bonds(channel), run.model
    assert isinstance(run.round().failure, TooFewClients)
    assert all(new is old for old, new in zip(before, _bonds(channel), strict=True))
    assert run.model is common


def test_a_bond_can_be_saved_even_if_parameters_were_whole_numbers() -> None:
    bond = _bc(lambda_min=1, lambda_max=2, gamma=0).first_memory()
    assert unpack(ConstraintState, pack(bond)) == bond
    assert bond.multiplier == 1.0


# --- what is refused ---


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"clip": None}, "clip must be set"),
        ({"lambda_max": None}, "lambda_max must be set"),
        ({"lambda_min": 5.0}, "lambda_min"),
        ({"alpha": 0.0}, "alpha"),
        ({"gamma": -1.0}, "gamma"),
        ({"gamma_step": -1.0}, "gamma_step"),
        ({"momentum": 1.5}, "momentum"),
        ({"fine_tune": -1}, "fine_tune"),
        ({"bits": 65}, "bits"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ParameterError, match=word):
        _bc(**settings)


@pytest.mark.parametrize("name", ["inner_steps", "inner_rate", "outer_rate"])
def test_settings_of_per_fedbc_that_make_no_sense(name: str) -> None:
    with pytest.raises(ParameterError, match=name):
        _per(**{name: 0})


def test_a_malicious_server_could_silence_all_but_one_unless_multipliers_have_a_floor() -> None:
    with pytest.raises(ParameterError, match="single out one client"):
        _bc().check_trust(Trust.MALICIOUS)
    _bc().check_trust(Trust.CURIOUS)
    _bc(lambda_min=0.4).check_trust(Trust.MALICIOUS)
