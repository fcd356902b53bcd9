"""Anderson acceleration over sums: the same as with everything in one place, from tau + 1 numbers more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocols.anderson import Anderson, AndersonSafeguard, combined, gram_of
from protocols.query_encoding import encode_query
from protocols.rounds import RoundInfo
from protocols.run import Run
from protocols.serialisation import as_vector
from protocols.splitting import Splitting
from protocols.splitting_anderson import GRAM, GramRow
from protocols.splitting_clients import AcceleratedSplit
from secagg.errors import MalformedMessage, ParameterError
from secagg.local_session import Stage
from secagg.trust_levels import Trust
from sims.plan.cost_plan import Conditions, plan_costs
from sims.runtime import Setting, insecure_plain_sum, secure_sum
from sims.runtime.sum_and_dropout_settings import DropoutSchedule, no_dropouts
from tests.protocols.splitting_central import Central
from tests.protocols.splitting_problem import SETTINGS, learners_of, models, problem
from tests.protocols.test_splitting import ETA, maps_of, settings_of, small

START = as_vector(np.zeros(8))


def central(name: str, tau: int, rounds: int) -> list[Any]:
    data = small()
    return Central(maps_of(name, data, 3), START, 5, settings_of(name), tau).run(rounds)


def accelerated(
    name: str, tau: int, *, dropouts: DropoutSchedule = no_dropouts, **more: Any
) -> tuple[Run[Any], Any]:
    given = {"clip": 10.0, "eta": ETA, "steps": 3, "memory": tau} | more
    algorithm = Splitting(dim=8, clients=5, **SETTINGS[name], **given)
    setting = Setting(insecure_seed=b"anderson", dropouts=dropouts, sums=1)
    channel = insecure_plain_sum(algorithm, learners_of(small()), setting)
    return Run(algorithm, channel, algorithm.start(START)), channel


# --- the same as in one place ---


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("tau", [1, 2, 3])
def test_it_is_what_one_who_knew_all_states_would_compute(name: str, tau: int) -> None:
    found = models(small(), 30, eta=ETA, steps=3, clip=10.0, memory=tau, **SETTINGS[name])
    assert np.abs(np.array(found) - central(name, tau, 30)).max() < 1e-6


@pytest.mark.parametrize("name", ["fedsplit", "fedpi"])
def test_with_a_ridge_long_windows_do_not_blow_up_rounding(name: str) -> None:
    given = {"eta": ETA, "clip": 10.0, "memory": 6, "regularisation": 1e-9, **SETTINGS[name]}
    reference = Central(maps_of(name, small(), 3), START, 5, settings_of(name), 6, ridge=1e-9)
    assert np.abs(np.array(models(small(), 25, **given)) - reference.run(25)).max() < 1e-6


@pytest.mark.parametrize("tau", [2, 3])
def test_what_the_server_takes_for_the_mean_of_all_points_does_not_drift(tau: int) -> None:
    """With short steps weights are large: a mean that they would multiply in each round is soon lost."""
    eta, setting = ETA / 10, settings_of("fedpi")
    run, channel = accelerated("fedpi", tau, eta=eta)
    reference = Central(lambda points, _: small().proximal(points, eta), START, 5, setting, tau)
    for number in range(60):
        reference.round(number)
        taken = run.state.point
        run.round()
        points = [each.memory.point for each in channel.participants.values()]
        assert np.abs(taken - np.mean(points, axis=0)).max() < 1e-12
        assert np.abs(run.model - reference.model).max() < 1e-6


@pytest.mark.parametrize("name", ["fedsplit", "fedpi", "fedrp"])
def test_over_secure_sums_it_has_the_same_bits(name: str) -> None:
    found = [
        models(small(), 12, make, eta=ETA, clip=10.0, memory=2, **SETTINGS[name])
        for make in (insecure_plain_sum, secure_sum)
    ]
    assert (np.array(found[0]) == found[1]).all()


def test_it_helps() -> None:
    data = small()
    for name in ("fedsplit", "fedpi", "splitting-fedavg"):
        given = {"eta": ETA, "steps": 1, "clip": 10.0, **SETTINGS[name]}
        plain, fast = (np.array(models(data, 24, **given, memory=tau)) for tau in (0, 2))
        assert np.linalg.norm(fast[-1] - data.optimum) < 0.1 * np.linalg.norm(plain[-1] - data.optimum)
        apart = np.abs(plain - fast).max(axis=1)
        assert apart[:4].max() < 1e-12, "combinations begin after tau + 2 rounds"
        assert apart[4] > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.25, 2.0])
@pytest.mark.parametrize("name", ["fedsplit", "fedpi"])
@pytest.mark.parametrize("tau", [1, 2, 3])
@pytest.mark.parametrize("shape", [(25, 100, 5000), (12, 30, 900)])
def test_sixty_rounds_of_the_chapters_problem(
    name: str, tau: int, noise: float, shape: tuple[int, int, int]
) -> None:
    users, features, rows = shape
    data = problem(noise, users=users, features=features, rows=rows)
    eta = 1e-5 * 5000 / rows
    found = models(data, 60, eta=eta, memory=tau, **SETTINGS[name])
    maps = lambda points, _: data.proximal(points, eta)  # noqa: E731
    expected = Central(maps, np.zeros(features), users, settings_of(name), tau).run(60)
    assert max(np.linalg.norm(one - other) for one, other in zip(found, expected, strict=True)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedsplit", "fedpi"])
def test_sixty_rounds_over_real_secure_sums(name: str) -> None:
    data = problem()
    maps = lambda points, _: data.proximal(points, 1e-5)  # noqa: E731
    expected = Central(maps, np.zeros(100), 25, settings_of(name), 2).run(60)
    found = models(data, 60, secure_sum, eta=1e-5, memory=2, **SETTINGS[name])
    assert max(np.linalg.norm(one - other) for one, other in zip(found, expected, strict=True)) < 1e-6


# --- what it costs ---


@pytest.mark.parametrize("name", SETTINGS)
def test_it_costs_tau_and_one_numbers_or_nothing(name: str) -> None:
    for tau in (1, 2, 7):
        plain, fast = (
            Splitting(dim=8, clients=5, clip=1.0, eta=0.1, memory=memory, **SETTINGS[name])
            for memory in (0, tau)
        )
        sizes = [sum(part.size for part in each.sums()[0].spec.parts) for each in (plain, fast)]
        assert fast.most_sums == plain.most_sums == 1
        assert sizes[1] - sizes[0] == (0 if SETTINGS[name]["beta"] == 1 else tau + 1)


@pytest.mark.parametrize("name", ["fedpi", "fedrp"])
def test_bytes_are_what_was_planned(name: str) -> None:
    algorithm = Splitting(dim=8, clients=5, clip=10.0, eta=ETA, memory=2, **SETTINGS[name])
    channel = secure_sum(algorithm, learners_of(small()), Setting(insecure_seed=b"plan"))
    run = Run(algorithm, channel, algorithm.start(START))
    assert all(run.round().completed for _ in range(6))
    channel.close()
    planned = plan_costs(algorithm, Conditions())
    assert sum(channel.bytes_up.values()) == 5 * (planned.setup_bytes + 6 * planned.round_bytes)


def test_a_round_asks_once() -> None:
    run, _ = accelerated("fedpi", 2)
    assert all(dict(run.round().sums) == {"split-accelerated": 1} for _ in range(8))


def test_inner_products_have_forty_bits_and_more_clients_than_allow_that_are_refused() -> None:
    for clients in (2, 25, 1000):
        row = GramRow(memory=2, clients=clients)
        (part,) = (row.part(),)
        assert 2.0**part.bits / (2 * clients * row.signal) >= 2**40
    with pytest.raises(ParameterError, match="fewer clients"):
        Splitting(dim=8, clients=5000, clip=1.0, eta=0.1, memory=2)
    assert Splitting(dim=8, clients=5000, clip=1.0, eta=0.1, memory=2, beta=1.0).most_sums == 1
    with pytest.raises(ParameterError, match="bits must be a whole number from 48"):
        Splitting(dim=8, clients=5, clip=1.0, eta=0.1, memory=2, bits=32)


def test_clients_keep_no_more_than_tau_and_one_pairs() -> None:
    run, channel = accelerated("fedsplit", 2)
    for _ in range(8):
        run.round()
        for each in channel.participants.values():
            assert len(each.memory.images) == len(each.memory.residuals) <= 2
            assert each.memory.sent is not None  # and the one that the next query completes


# --- who takes part ---


def away(*rounds: tuple[int, int]) -> DropoutSchedule:
    """(round, member): who is not there when."""

    def dropouts(member: int, stage: Any, number: int, index: int) -> bool:
        return stage is Stage.MASK and index == 0 and (number, member) in rounds

    return dropouts


@pytest.mark.parametrize("name", ["fedsplit", "fedpi"])
@pytest.mark.parametrize(
    "absences",
    [
        [(6, 3)],
        [(6, 3), (6, 4)],
        [(6, 3), (7, 4)],  # as many as before, but others
        [(5, 1), (6, 1), (7, 1), (8, 1), (9, 1), (10, 1)],
        [(0, 2)],
        [(4, 2), (9, 0), (14, 2)],
    ],
)
def test_a_change_of_the_cohort_begins_a_new_window(name: str, absences: list[tuple[int, int]]) -> None:
    """Without it, combinations would mix maps of different cohorts."""
    run, _ = accelerated(name, 2, dropouts=away(*absences))
    reference = Central(maps_of(name, small(), 3), START, 5, settings_of(name), 2)
    restarted = False
    for number in range(24):
        before = reference.seen
        reference.round(number, [k for k in range(5) if (number, k) not in absences])
        restarted |= reference.seen < before
        report = run.round()
        assert report.completed
        assert np.allclose(run.model, reference.model, rtol=0, atol=1e-7), number
        assert report.facts["pairs"] == reference.seen, number
    assert restarted


def test_where_gamma_is_not_one_the_mean_of_all_points_is_asked_for_once() -> None:
    run, _ = accelerated("fedpi", 2, dropouts=away((6, 3)))
    steps: list[object] = []
    means = []
    for _ in range(16):
        report = run.round()
        assert report.completed
        steps.append("moved nobody" if report.facts["moved"] == 0 else report.facts["pairs"])
        means.append(run.state.window.mean)
    # It is away in round 6 and comes back in 7; 8 is quiet; 9 measures; and so on from there.
    assert steps[:6] == [1, 2, 3, 4, 5, 6]
    assert steps[6:] == [0, 0, 0, "moved nobody", 1, 2, 3, 4, 5, 6]
    # Round 6 begins with a combination, and its sum tells the mean; that of round 7 does not.
    assert means[6:10] == ["known", "lost", "asked", "known"]


def test_where_a_combination_meets_a_change_the_sum_tells_the_mean_of_all_points() -> None:
    gone = [(number, 3) for number in range(6, 20)]
    run, channel = accelerated("fedpi", 2, dropouts=away(*gone))
    pairs = [run.round().facts["pairs"] for _ in range(7)]
    expected = run.state.point
    pairs += [run.round().facts["pairs"] for _ in range(9)]
    assert pairs == [1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "no round is used to ask"
    other, again = accelerated("fedpi", 2, dropouts=away(*gone))
    for _ in range(8):
        other.round()
    points = [again.participants[user].memory.point for user in (0, 1, 2, 4)]
    assert np.allclose(expected, np.mean(points, axis=0), rtol=0, atol=1e-13)
    assert channel.participants[3].memory.step == 5


def test_a_measurement_moves_nobody_and_finds_the_mean() -> None:
    run, channel = accelerated("fedpi", 2, dropouts=away((6, 3)))
    for _ in range(9):
        run.round()
    model = run.model
    run.round()
    points = [each.memory.point for each in channel.participants.values()]
    assert (run.model == model).all()
    assert np.allclose(run.state.point, np.mean(points, axis=0), rtol=0, atol=1e-14)
    assert all(each.memory.sent is None for each in channel.participants.values())


def test_a_cohort_that_never_settles_is_never_accelerated_and_never_measured() -> None:
    """It is the plain scheme then."""
    absences = [(number, number % 5) for number in range(40)]
    for name in ("fedsplit", "fedpi"):
        fast, _ = accelerated(name, 2, dropouts=away(*absences))
        plain, _ = accelerated(name, 0, dropouts=away(*absences))
        for _ in range(20):
            assert fast.round().facts["pairs"] in (0, 1)
            plain.round()
            assert np.allclose(fast.model, plain.model, rtol=0, atol=1e-12)


def test_where_u_is_common_another_number_of_clients_begins_a_new_window() -> None:
    run, _ = accelerated("fedrp", 2, dropouts=away((6, 3)))
    assert [run.round().facts["pairs"] for _ in range(10)] == [1, 2, 3, 4, 5, 6, 1, 1, 2, 3]


def test_residuals_that_outgrow_the_unit_begin_a_new_window_with_a_wider_one() -> None:
    run, _ = accelerated("fedsplit", 2)
    for _ in range(5):
        run.round()
    tiny = replace(run.state, window=replace(run.state.window, unit=run.state.window.unit * 1e-6))
    run.state = tiny
    pairs = [run.round().facts["pairs"] for _ in range(12)]
    assert pairs[0] == 0
    assert 4 in pairs, "it has found a unit that fits"
    assert np.linalg.norm(run.model - small().optimum) < 1e-3


# --- weights ---


def test_weights_minimise_the_combined_residual_and_add_up_to_one() -> None:
    rng = np.random.default_rng(4)
    residuals = list(rng.normal(size=(3, 9)))
    weights = Anderson(memory=2).weights(gram_of(residuals))
    assert weights.sum() == pytest.approx(1)
    best = np.linalg.norm(combined(weights, residuals))
    for _ in range(20):
        step = rng.normal(size=3)
        other = weights + 0.1 * (step - step.mean())
        assert best < np.linalg.norm(combined(other, residuals))


@pytest.mark.parametrize("gram", [np.zeros((2, 2)), np.full((2, 2), np.nan), np.array([[1.0, 0], [0, -1.0]])])
def test_where_a_matrix_says_nothing_the_step_is_plain(gram: Any) -> None:
    assert Anderson(memory=1).weights(gram).tolist() == [0.0, 1.0]
    assert Anderson(memory=1, regularisation=1e300).weights(1e200 * gram).tolist() == [0.0, 1.0]


def test_a_ridge_draws_weights_together_and_damping_towards_the_plain_step() -> None:
    gram = gram_of([np.array([1.0, 0.0]), np.array([0.9, 0.1]), np.array([0.8, 0.21])])
    kinds = (Anderson(), Anderson(regularisation=1e-2), Anderson(damping=0.25))
    bare, ridged, damped = (each.weights(gram) for each in kinds)
    assert np.linalg.norm(ridged) < 0.8 * np.linalg.norm(bare)
    assert np.allclose(damped, 0.75 * bare + 0.25 * np.array([0, 0, 1]))
    assert np.allclose(Anderson(regularisation=1e9).weights(gram), 1 / 3)


def test_the_safeguard_checks_once_in_a_while_and_again_until_residuals_fall() -> None:
    guard = AndersonSafeguard().met(2.0).met(5.0)
    assert guard.first == 2.0
    taken, guard = guard.judge(1e7, patience=3)  # above 1e6 times the first
    assert (taken, guard.accepted, guard.strict) == (False, 0, True)
    taken, guard = guard.judge(1.0, patience=3)
    for _ in range(2):
        taken, guard = guard.judge(1e30, patience=3)
        assert taken, "between two checks, nothing is checked"
    taken, guard = guard.judge(1.1e6, patience=3)  # after three, the limit is half of what it was
    assert not taken
    assert guard.judge(0.9e6, patience=3)[0]


@pytest.mark.parametrize("name", ["splitting-fedprox", "splitting-fedavg"])
def test_clipped_residuals_do_not_lead_astray(name: str) -> None:
    """They are all of one length, so that weights from them are of any size, and points beyond bounds."""
    run, _ = accelerated(name, 2, clip=0.15)
    for _ in range(60):
        assert run.round().completed
    optimum = small().optimum
    assert np.linalg.norm(run.model - optimum) < 0.2 * np.linalg.norm(START - optimum)


def test_options_lead_to_the_same_place() -> None:
    goal = small().optimum
    for more in ({"regularisation": 1e-8}, {"safeguard": True, "patience": 2}, {"damping": 0.2}):
        run, _ = accelerated("fedpi", 2, **more)
        for _ in range(30):
            run.round()
        assert np.linalg.norm(run.model - goal) < 1e-4


# --- what a server may ask ---


def answered(query: AcceleratedSplit, rounds: int = 4) -> Any:
    """By a client that has taken part in some rounds."""
    run, channel = accelerated("fedsplit", 2)
    for _ in range(rounds):
        run.round()
    round_info = RoundInfo(rounds, 2**rounds - 1)
    return channel.participants[1].answer(
        query.kind, encode_query(round_info, query), round_number=round_info.number, invited=5
    )


HONEST = AcceleratedSplit(START, 4, None, 2, as_vector([1.0] * 3), measure=False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": -1},
        {"window": -1},
        {"window": 3},
        {"units": as_vector([1.0, 0.0, 1.0])},
        {"units": as_vector([1.0, 1.0, -1.0])},
        {"units": as_vector([1.0, 1.0])},
        {"measure": True},
        {"weights": as_vector([1.0])},
        {"weights": as_vector([1.0, 1.0, 1.0])},
        {"weights": as_vector([0.0, 0.0, 0.0])},
        {"weights": as_vector([0.5, 0.25, 0.125, 0.125])},
    ],
)
def test_a_query_that_no_server_would_send_is_refused(wrong: dict[str, Any]) -> None:
    assert answered(HONEST) is not None
    with pytest.raises(MalformedMessage):
        answered(replace(HONEST, **wrong))


@pytest.mark.parametrize("unit", [1e-300, 1e-12, 2.0**40])
@pytest.mark.parametrize("step", [0, 2, 4, 2**62])
def test_whatever_unit_and_step_a_server_chooses_rows_are_bounded(unit: float, step: int) -> None:
    bound = GramRow(memory=2, clients=5).signal
    row = answered(replace(HONEST, units=as_vector([unit] * 3), step=step))[GRAM]
    assert np.isfinite(row).all()
    assert (np.abs(row) <= bound).all()


def test_who_has_no_row_says_so_whatever_the_others_add() -> None:
    row = GramRow(memory=2, clients=5)
    for changes in ({"step": 3}, {"units": as_vector([1e-9] * 3)}):
        found = answered(replace(HONEST, **changes))[GRAM]
        assert found.tolist() == [0.0, 0.0, -row.signal]
    assert row.signal > 5 * 8.0, "one of them makes the diagonal negative"


@pytest.mark.parametrize("name", ["fedsplit", "fedpi"])
def test_rows_are_refused_where_the_server_may_be_malicious(name: str) -> None:
    """By units of its choice it could leave one client with a row of its own."""
    given: dict[str, Any] = {"dim": 3, "clients": 5, "eta": 1.0, "clip": 1.0}
    with pytest.raises(ParameterError, match="set memory to 0"):
        Splitting(**given, **SETTINGS[name], memory=1).check_trust(Trust.MALICIOUS)
    Splitting(**given, **SETTINGS[name]).check_trust(Trust.MALICIOUS)
    Splitting(**given, **SETTINGS["fedrp"], memory=1).check_trust(Trust.MALICIOUS)


def test_a_row_is_what_it_says() -> None:
    gram = GramRow(memory=2, clients=3)
    centred, past = np.array([1.0, 2.0]), [np.array([3.0, 0.0]), np.array([0.0, 1.0])]
    units = np.array([20.0, 5.0, 10.0])
    assert gram.of(centred, past, units, 1.0).tolist() == pytest.approx([0.015, 0.04, 0.05])  # type: ignore[union-attr]
    assert gram.of(centred, past[1:], units, 0.5).tolist() == pytest.approx([0.0, 0.02, 0.025])  # type: ignore[union-attr]
    assert gram.of(centred, past, units / 20, 1.0) is None
