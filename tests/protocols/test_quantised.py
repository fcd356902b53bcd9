"""Updates in a few levels: as many bits as that takes, without bias, on a scale that follows them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from protocols.averaging import UPDATE, WEIGHT
from protocols.quadratic_learner import QuadraticLearner
from protocols.quantised import OCTAVES, Quantise, Quantised, Remainder
from protocols.serialisation import Vector, as_vector
from secagg.clipping_and_fixed_point import levels
from secagg.errors import MalformedMessage, ParameterError
from secagg.sum_spec import Total
from secagg.trust_levels import Trust
from sims.plan.cost_plan import Conditions, plan_costs
from sims.runtime import SessionChannel
from tests.protocols.baselines import Learners, assert_same_bits, quadratics, ran, settled

DIM, CLIENTS = 12, 4
MODEL = as_vector(np.zeros(DIM))


def quantised(**other: Any) -> Quantised:
    return Quantised(**({"dim": DIM, "clients": CLIENTS, "reach": 4.0} | other))


def sending(updates: Any) -> Learners:
    """Clients whose updates of a model of zeros are these."""
    return quadratics(updates, rate=1.0)


def unlike(scale: float = 1.0) -> Vector:
    return np.asarray(scale * np.random.default_rng(2).uniform(-1, 1, size=(CLIENTS, DIM)))


# --- bits ---


@pytest.mark.parametrize("clients", [2, 3, 10, 100, 1000])
@pytest.mark.parametrize("count", [2, 3, 5, 16, 17, 256])
def test_as_many_bits_are_sent_as_the_levels_of_all_take(clients: int, count: int) -> None:
    algorithm = Quantised(dim=800, clients=clients, levels=count, reach=1.0)
    bits = math.ceil(math.log2(2 * clients * (count - 1) + 1))
    (part, *_) = algorithm.sums()[0].spec.parts
    assert (part.size, part.bits) == (800, bits)
    assert levels(bits, clients) >= count - 1 > levels(bits - 1, clients)
    fixed = Quantised(dim=800, clients=clients, levels=count, reach=1.0, adaptive=False)
    assert fixed.sums()[0].spec.packed_bytes == 800 * bits // 8 + 8


def test_planned_bytes_are_those_that_are_sent() -> None:
    algorithm = quantised(bucket=5)
    outlook = plan_costs(algorithm, Conditions())
    run, channel = ran(algorithm, sending(unlike()), 2, secure=True)
    assert run.round_info.completed(1)
    channel.close()
    planned = outlook.setup_bytes + 2 * outlook.round_bytes
    assert sum(channel.bytes_up.values()) == CLIENTS * planned


# --- levels ---


def test_a_total_consists_of_levels() -> None:
    algorithm = quantised(adaptive=False, levels=5)
    run, _ = ran(algorithm, sending(unlike(4.0)), 1)
    step = 4.0 / levels(algorithm.bits, CLIENTS)
    in_steps = run.model * CLIENTS / step
    assert in_steps == pytest.approx(np.round(in_steps), abs=1e-9)
    assert run.model == pytest.approx(unlike(4.0).mean(axis=0), abs=step)


def test_rounding_is_without_bias() -> None:
    """The mean of R rounds is what was sent. Over all seeds, it would be said not to be in 1 of 1e7 cases.

    That is Hoeffding's bound: the error of one client in one round is in a range of one step s, so the mean
    of R * n of them is off by t or more in one of 1200 places with 1200 * 2 exp(-2 R n t^2 / s^2) at most.
    """
    updates = np.tile(unlike(1.0), (1, 100))
    algorithm = Quantised(dim=1200, clients=CLIENTS, reach=1.0, levels=2, adaptive=False)
    learners, rounds = sending(updates), 150
    run, _ = ran(algorithm, learners, 0, insecure_seed=b"unbiased")
    found = np.zeros(1200)
    for _ in range(rounds):
        run.state = algorithm.start(np.zeros(1200))
        assert run.round().completed
        found += run.model / rounds
    step = 1.0 / levels(algorithm.bits, CLIENTS)
    bound = step * math.sqrt(math.log(2 * 1200 / 1e-7) / (2 * rounds * CLIENTS))
    errors = found - updates.mean(axis=0)
    assert np.abs(errors).max() < bound
    assert np.abs(errors).max() > 0.1 * bound  # it is rounded, after all


def test_it_settles_near_the_mean_and_the_nearer_the_more_levels() -> None:
    target = unlike(2.0).mean(axis=0)
    learners = quadratics(unlike(2.0), rate=0.1, steps=5)
    off = [
        float(np.linalg.norm(settled(quantised(levels=count), learners, 40) - target))
        for count in (3, 33, 1025)
    ]
    assert off[0] < 2.0
    assert off[1] < off[0] / 4
    assert off[2] < off[1] / 8


def test_where_clients_agree_it_settles_for_good() -> None:
    """Updates become smaller, and the scale with them."""
    same = quadratics(np.tile(unlike()[0], (CLIENTS, 1)), rate=0.1, steps=5)
    assert settled(quantised(levels=5), same, 60) == pytest.approx(unlike()[0], abs=1e-5)


def test_weights_count() -> None:
    samples = [1, 2, 3, 50]
    algorithm = quantised(weighted=True, cap=10, levels=1 << 20, adaptive=False)
    learners = quadratics(unlike(), samples=samples, rate=1.0)
    run, _ = ran(algorithm, learners, 1)
    expected = np.average(unlike(), axis=0, weights=np.minimum(samples, 10))
    assert run.model == pytest.approx(expected, abs=1e-4)
    assert algorithm.sums()[0].spec.parts[-1].name == WEIGHT
    assert "samples" in algorithm.sums()[0].reveals
    assert "samples" not in quantised().sums()[0].reveals


def test_one_local_step_sends_a_gradient() -> None:
    learner = QuadraticLearner(unlike()[0], rate=0.1, steps=7)
    answer = quantised(local_steps=1).client(learner, Remainder()).answer(Quantise(MODEL, as_vector([0.0])))
    assert answer[UPDATE] == pytest.approx(-0.1 * learner.gradient(MODEL) / 4.0)


# --- the scale ---


def answer_of(algorithm: Quantised, update: Any, halvings: list[float]) -> dict[str, Any]:
    learner = QuadraticLearner(np.asarray(update), rate=1.0, steps=1)
    return dict(algorithm.client(learner, Remainder()).answer(Quantise(MODEL, as_vector(halvings))))


@pytest.mark.parametrize(
    ("largest", "cell"),
    [(4.1, 0), (4.0, 1), (2.1, 1), (2.0, 2), (1.0, 3), (0.13, 5), (0.0625, 7), (1e-9, 7), (0.0, 7)],
)
def test_a_client_says_how_large_its_largest_number_is(largest: float, cell: int) -> None:
    update = np.zeros(DIM)
    update[3] = -largest
    cells = answer_of(quantised(), update, [0.0])[OCTAVES]
    assert np.flatnonzero(cells).tolist() == [cell]
    assert cells.sum() == 1


def test_the_scale_follows_the_updates() -> None:
    algorithm = quantised()
    run, _ = ran(algorithm, sending(unlike(0.3)), 1)
    assert run.state.halvings.tolist() == [3]  # 0.5, with which none of 0.3 is clipped
    run, _ = ran(algorithm, sending(unlike(1e-6)), 6)
    assert algorithm.scales(run.state.halvings)[0] == pytest.approx(4.0 * 2.0**-21)
    assert 4.0 * 2.0**-21 > np.abs(unlike(1e-6)).max() > 4.0 * 2.0**-23


def test_a_scale_that_is_too_small_is_doubled_but_never_beyond_reach() -> None:
    algorithm, learners = quantised(), sending(unlike(3.0))
    run, _ = ran(algorithm, learners, 0)
    run.state = type(run.state)(MODEL, as_vector([2.0]))
    facts = [dict(run.round().facts) for _ in range(3)]
    assert facts[0]["clipped"] == CLIENTS
    assert [each["scale"] for each in facts] == [1.0, 2.0, 4.0]
    far, _ = ran(algorithm, sending(unlike(100.0)), 3)
    assert far.state.halvings.tolist() == [0]


def test_some_may_be_clipped() -> None:
    updates = unlike(0.2)
    updates[2] *= 15.0
    for share, halvings in ((0.0, 0), (0.25, 4)):
        run, _ = ran(quantised(share=share), sending(updates), 1)
        assert run.state.halvings.tolist() == [halvings]


def test_each_bucket_has_its_own_scale() -> None:
    updates = unlike() * np.repeat([1.0, 0.3, 0.1], [5, 5, 2])
    algorithm = quantised(bucket=5, levels=17)
    run, _ = ran(algorithm, sending(updates), 1)
    largest = np.maximum.reduceat(np.abs(updates).max(axis=0), [0, 5, 10])
    scales = algorithm.scales(run.state.halvings)
    assert ((largest <= scales) & (scales < 2 * largest)).all()
    again = quadratics(run.model + updates, rate=1.0)  # the same updates once more, now in the right scale
    second, _ = ran(algorithm, again, 0)
    second.state = run.state
    second.round()
    error = np.abs(second.model - run.model - updates.mean(axis=0))
    assert (error <= algorithm.spread(scales) / 16).all()


def test_what_lies_far_below_the_first_level_does_not_move_the_model() -> None:
    algorithm = quantised()
    run, _ = ran(algorithm, sending(unlike(0.1)), 1)
    assert not run.model.any()
    run.round()
    assert run.model.any()
    # On a fixed scale it does, unless all numbers are rounded to zero: about once in thirty without a seed.
    kept, _ = ran(quantised(adaptive=False), sending(unlike(0.1)), 1, insecure_seed=b"far below")
    assert kept.model.any()


def remainders(channel: SessionChannel) -> list[Vector | None]:
    return [each.memory.value for each in channel.participants.values()]


def test_what_is_clipped_comes_later_or_never() -> None:
    """A client sends 1.5 of a number once, on a scale of 1: the rest comes in the next round."""
    update = np.zeros((CLIENTS, DIM))
    update[1, 3] = 1.5
    settings: dict[str, Any] = {"reach": 1.0, "levels": 1 << 16, "adaptive": False}
    for feedback, moved in ((True, 1.5), (False, 1.0)):
        run, channel = ran(quantised(**settings, feedback=feedback), sending(update), 1)
        assert run.model[3] == pytest.approx(1.0 / CLIENTS, abs=1e-4)
        if feedback:
            rest = remainders(channel)[1]
            assert rest is not None
            assert rest[3] == pytest.approx(0.5)
        else:
            assert remainders(channel) == [None] * CLIENTS
        for each in channel.participants.values():
            each.learner = QuadraticLearner(run.model)  # nobody wants anything more
        run.round()
        assert run.model[3] == pytest.approx(moved / CLIENTS, abs=1e-4)


def test_what_is_kept_has_a_bound() -> None:
    _, channel = ran(quantised(feedback=True, reach=0.5), sending(unlike(100.0)), 5)
    sizes = [np.abs(each).max() for each in remainders(channel) if each is not None]
    assert sizes == [0.5] * CLIENTS


def test_an_update_that_is_no_number_is_not_sent() -> None:
    values = answer_of(quantised(feedback=True), np.full(DIM, np.inf), [0.0])[UPDATE]
    assert np.isnan(values).all()


@pytest.mark.parametrize("other", [{}, {"bucket": 5, "feedback": True}, {"adaptive": False, "levels": 2}])
def test_secure_and_plain_sums_give_the_same_bits(other: dict[str, Any]) -> None:
    assert_same_bits(quantised(**other), quadratics(unlike(3.0), steps=3))


# --- what is refused ---


def test_a_scale_of_the_servers_choice_reads_the_smallest_update_and_is_refused_if_it_may_be_malicious() -> (
    None
):
    """Who is beyond the scale adds plus or minus one: of an odd number of them, an odd number."""
    algorithm, smallest = quantised(levels=1 << 16), unlike(1e-3)[0]
    updates = [smallest, *np.sign(unlike(1.0)[1:])]
    scale = 4.0 * 2.0**-11
    total = sum(answer_of(algorithm, each, [11.0])[UPDATE] for each in updates)
    assert (np.mod(total, 2.0) - 1) * scale == pytest.approx(smallest, abs=1e-9)
    with pytest.raises(ParameterError, match="single out one client; to prevent that, set adaptive to False"):
        algorithm.check_trust(Trust.MALICIOUS)
    algorithm.check_trust(Trust.CURIOUS)
    quantised(adaptive=False).check_trust(Trust.MALICIOUS)


@pytest.mark.parametrize("halvings", [-1.0, 41.0, 0.5])
def test_scales_that_no_honest_server_has_are_refused(halvings: float) -> None:
    with pytest.raises(MalformedMessage, match="halved from 0 to 40"):
        answer_of(quantised(), np.ones(DIM), [halvings])


def test_a_scale_where_it_is_fixed_is_refused_and_none_where_it_is_not() -> None:
    learner = sending(unlike())[0]
    with pytest.raises(MalformedMessage, match="agreed"):
        answer_of(quantised(adaptive=False), np.ones(DIM), [0.0])
    with pytest.raises(MalformedMessage, match="agreed"):
        quantised().client(learner, Remainder()).answer(Quantise(MODEL, None))


def test_clients_without_samples_make_no_mean() -> None:
    algorithm = quantised(weighted=True, adaptive=False)
    steps = algorithm.round(algorithm.start(MODEL))
    next(steps)
    nothing = Total({UPDATE: np.zeros(DIM), WEIGHT: np.zeros(1, np.uint64)}, count=3, invited=3)
    with pytest.raises(Exception, match="no samples"):
        steps.send(nothing)


@pytest.mark.parametrize(
    "wrong",
    [
        {"reach": None},
        {"levels": 1},
        {"levels": 2.5},
        {"share": 1.5},
        {"bucket": 0},
        {"local_steps": 0},
        {"cap": 0},
        {"feedback": "no"},
    ],
)
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        quantised(**wrong)
