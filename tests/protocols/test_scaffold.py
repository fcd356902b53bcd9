"""SCAFFOLD: the exact optimum of unlike clients, and controls that both sides change together."""

from __future__ import annotations

import numpy as np
import pytest

from protocols.averaging import UPDATE
from protocols.fedavg import FedAvg
from protocols.learner import Steering
from protocols.scaffold import CONTROL, Controlled, ControlVariate, Scaffold
from protocols.serialisation import Vector, as_vector, pack
from secagg.errors import MalformedMessage, ParameterError
from secagg.local_session import Stage
from secagg.sum_spec import L2
from sims.runtime import SessionChannel
from tests.protocols.baselines import (
    Learners,
    all_missing,
    assert_same_bits,
    missing,
    quadratics,
    ran,
    settled,
)

CENTRES = [[0.0, 0.0], [4.0, 0.0], [0.0, 2.0], [-1.0, 5.0]]
CURVATURES = [1.0, 3.0, 0.5, 2.0]
OPTIMUM = np.average(CENTRES, axis=0, weights=CURVATURES)


def four() -> Learners:
    return quadratics(CENTRES, CURVATURES, rate=0.1, steps=10)


def scaffold(**other: object) -> Scaffold:
    settings: dict[str, object] = {"clip": 15.0, "steps": 10, "rate": 0.1, "bits": 48}
    return Scaffold(dim=2, clients=4, **(settings | other))  # type: ignore[arg-type]


def controls(channel: SessionChannel) -> list[Vector]:
    values = [each.memory.value for each in channel.participants.values()]
    return [np.zeros(2) if each is None else each for each in values]


def test_it_settles_at_the_optimum_where_averaging_does_not() -> None:
    run, channel = ran(scaffold(), four(), 80)
    assert run.model == pytest.approx(OPTIMUM, abs=1e-9)
    gradients = [each.gradient(OPTIMUM) for each in four().values()]
    assert np.array(controls(channel)) == pytest.approx(np.array(gradients), abs=1e-8)
    # The mean of what k steps reach is that of the centres, weighted by 1 - (1 - rate * curvature)^k.
    shares = 1 - (1 - 0.1 * np.array(CURVATURES)) ** 10
    biased = np.average(CENTRES, axis=0, weights=shares)
    averaging = FedAvg(dim=2, clients=4, clip=15.0, weighted=False, bits=48)
    assert settled(averaging, four(), 40) == pytest.approx(biased, abs=1e-9)
    assert np.linalg.norm(biased - OPTIMUM) > 0.3


def test_it_settles_there_with_draws_of_clients_and_a_slower_server() -> None:
    def draw(number: int) -> list[int]:
        return [number % 4, (number + 1) % 4, (number + 2) % 4]

    algorithm = Scaffold(
        dim=2, clients=3, clip=30.0, steps=10, rate=0.1, population=4, server_rate=0.5, bits=48
    )
    run, channel = ran(algorithm, four(), 150, sample_cohort=draw)
    assert run.model == pytest.approx(OPTIMUM, abs=1e-6)
    assert run.state.control == pytest.approx(np.mean(controls(channel), axis=0), abs=1e-9)


def test_one_answer_by_hand() -> None:
    algorithm, (learner, *_) = scaffold(), four().values()
    own, common, model = as_vector([0.5, -1.0]), as_vector([1.0, 2.0]), as_vector([2.0, 1.0])
    client = algorithm.client(learner, ControlVariate(own))
    answer = client.answer(Controlled(model, common))
    local = learner.train(model, Steering(correction=common - own))
    renewed = own - common + (model - local) / (10 * 0.1)
    assert answer[UPDATE] == pytest.approx(local - model)
    assert answer[CONTROL] == pytest.approx(renewed - own)
    assert client.memory().value == pytest.approx(renewed)


def test_a_step_of_the_server_by_hand() -> None:
    learners = four()
    algorithm = scaffold(server_rate=0.5, population=8)
    run, channel = ran(algorithm, learners, 1)
    updates = [each.train(np.zeros(2)) for each in learners.values()]
    assert run.model == pytest.approx(0.5 * np.mean(updates, axis=0), abs=1e-10)
    assert run.state.control == pytest.approx(np.sum(controls(channel), axis=0) / 8, abs=1e-10)


def test_controls_have_a_bound() -> None:
    algorithm = scaffold(clip=0.5)
    far = quadratics(np.multiply(CENTRES, 1000), CURVATURES, rate=0.1, steps=10)
    _, channel = ran(algorithm, far, 5)
    norms = [float(np.linalg.norm(each)) for each in controls(channel)]
    assert max(norms) == pytest.approx(0.5)
    assert algorithm.control_limit == pytest.approx(0.5)
    # A control that turns round changes by twice its bound, and that is the bound of the sum.
    one = algorithm.client(far[0], ControlVariate(as_vector([0.5, 0.0])))
    change = np.asarray(one.answer(Controlled(as_vector([-1e6, 0.0]), as_vector([0.5, 0.0])))[CONTROL])
    assert np.linalg.norm(change) == pytest.approx(2 * algorithm.control_limit)
    assert algorithm.sums()[0].spec.parts[1].bound == L2(2 * algorithm.control_limit)


# --- both sides change together ---

both_channels = pytest.mark.parametrize("secure", [False, True])


@both_channels
def test_a_round_that_fails_leaves_all_controls_as_they_were(
    secure: bool,
) -> None:
    run, channel = ran(scaffold(), four(), 3, secure=secure, dropouts=all_missing(3, Stage.REVEAL))
    before = pack(run.state), [pack(each.memory) for each in channel.participants.values()]
    assert not run.round().completed
    assert (pack(run.state), [pack(each.memory) for each in channel.participants.values()]) == before
    assert run.round().completed
    undisturbed, _ = ran(scaffold(), four(), 4)
    assert run.model == pytest.approx(undisturbed.model, abs=1e-9)
    assert run.state.control == pytest.approx(np.mean(controls(channel), axis=0), abs=1e-9)


def test_until_it_hears_that_it_was_counted_a_client_has_both_controls() -> None:
    run, channel = ran(scaffold(), four(), 1)
    client = channel.participants[2]
    channel.begin(run.round_info)
    channel.ask(Controlled(run.model, run.state.control))
    before = pack(client.memory)
    saved = client.save()
    client.apply_history(run.round_info.next(completed=False))
    assert pack(client.memory) == before
    client.restore(saved)
    client.apply_history(run.round_info.next(completed=True))
    assert pack(client.memory) != before


@both_channels
def test_a_client_that_leaves_before_it_sends_keeps_its_control_and_the_server_counts_none(
    secure: bool,
) -> None:
    run, channel = ran(scaffold(), four(), 3, secure=secure, dropouts=missing(1, Stage.MASK, 3))
    before = controls(channel)
    assert run.round().clients == 3
    changed = [not np.array_equal(a, b) for a, b in zip(before, controls(channel), strict=True)]
    assert changed == [True, False, True, True]
    assert run.state.control == pytest.approx(np.mean(controls(channel), axis=0), abs=1e-9)


@both_channels
def test_a_client_that_leaves_after_it_sent_is_told_later_that_it_was_counted(secure: bool) -> None:
    run, channel = ran(scaffold(), four(), 1, secure=secure, dropouts=missing(1, Stage.REVEAL, 1))
    learner, own = four()[1], controls(channel)[1]
    answer = scaffold().client(learner, ControlVariate(own)).answer(Controlled(run.model, run.state.control))
    assert run.round().clients == 4
    assert np.linalg.norm(controls(channel)[1] - own) > 0
    assert controls(channel)[1] == pytest.approx(own + np.asarray(answer[CONTROL]), abs=1e-9)
    assert run.state.control == pytest.approx(np.mean(controls(channel), axis=0), abs=1e-9)


def test_secure_and_plain_sums_give_the_same_bits() -> None:
    assert_same_bits(scaffold(bits=32), four())


@pytest.mark.parametrize("name", ["clip", "steps", "rate"])
def test_bounds_must_be_set(name: str) -> None:
    with pytest.raises(ParameterError, match=f"{name} must be set: .*such as"):
        scaffold(**{name: None})


@pytest.mark.parametrize("wrong", [{"steps": 1.5}, {"rate": 0.0}, {"server_rate": 0.0}, {"population": 3}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        scaffold(**wrong)


def test_a_common_control_that_no_clients_have_is_refused() -> None:
    """A huge one would make a client's own control the only thing in its answer that is not known."""
    client = scaffold().client(four()[0], ControlVariate(None))
    most = np.zeros(scaffold().dim)
    most[0] = scaffold().control_limit
    client.answer(Controlled(as_vector(np.zeros(scaffold().dim)), as_vector(most)))
    with pytest.raises(MalformedMessage, match="no mean"):
        client.answer(Controlled(as_vector(np.zeros(scaffold().dim)), as_vector(1.1 * most)))


@pytest.mark.parametrize(("clip", "rate"), [(1e150, 1e-10), (1e-150, 1e10)])
def test_bounds_of_controls_that_are_too_large_or_too_small_are_refused(clip: float, rate: float) -> None:
    with pytest.raises(ParameterError, match="bounds a control"):
        scaffold(clip=clip, rate=rate)
