"""An optimiser around any algorithm: the same sums and clients, another step, and none without a model."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from protocols.afl import AFL
from protocols.catalogue import CATALOGUE
from protocols.ditto import Ditto
from protocols.evaluation import EvaluationMetrics, WithEvaluation
from protocols.fedavg import FedAvg
from protocols.personal_model import OwnModel
from protocols.privacy_budget import PrivacyBudget
from protocols.scaffold import Scaffold
from protocols.serialisation import Vector, pack, unpack
from protocols.server_optimiser import FedOpt, ServerOptimiser, WithServerOptimiser
from protocols.simplicial import SimplicialFL
from protocols.splitting import Splitting
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import ParameterError
from secagg.noise.privacy_goal import Goal
from secagg.sum_spec import Total
from sims.runtime.hosted_clients import pack_algorithm
from tests.protocols.baselines import Learners, assert_same_bits, quadratics, ran, settled

CENTRES = [[0.0, 0.0, 1.0], [4.0, 0.0, 1.0], [0.0, 2.0, 1.0], [-1.0, 5.0, 1.0]]
MOMENTUM = ServerOptimiser(momentum=0.8)
ADAM = ServerOptimiser(kind="adam", rate=0.1)
SMALL: dict[str, Any] = {"dim": 3, "clients": 4, "clip": 50.0}


def four(steps: int = 3) -> Learners:
    return quadratics(CENTRES, rate=0.1, steps=steps)


def fedavg(**other: Any) -> FedAvg:
    return FedAvg(**({"dim": 3, "clients": 4, "clip": 50.0, "weighted": False, "bits": 52} | other))


def reference(optimiser: ServerOptimiser, rounds: int) -> list[Vector]:
    """What should come out, with means of updates that are known."""
    model, state, found = np.zeros(3), optimiser.start(3), []
    for _ in range(rounds):
        update = np.mean([each.train(model) - model for each in four().values()], axis=0)
        model, state = optimiser.step(state, model, update)
        found.append(model)
    return found


@pytest.mark.parametrize("optimiser", [MOMENTUM, ADAM, ServerOptimiser(kind="yogi", rate=0.1)])
def test_the_model_moves_as_the_optimiser_says(optimiser: ServerOptimiser) -> None:
    run, _ = ran(WithServerOptimiser(algorithm=fedavg(), optimiser=optimiser), four(), 0)
    before = np.zeros(3)
    for expected in reference(optimiser, 12):
        report = run.round()
        assert run.model == pytest.approx(expected, abs=1e-9)
        assert report.facts["moved"] == pytest.approx(np.linalg.norm(run.model - before))
        before = run.model


def test_plain_steps_change_nothing() -> None:
    alone, _ = ran(fedavg(), four(), 5)
    wrapped, _ = ran(WithServerOptimiser(algorithm=fedavg(), optimiser=ServerOptimiser()), four(), 5)
    assert wrapped.model == pytest.approx(alone.model, abs=1e-12)


def test_momentum_is_quicker_where_updates_are_small_and_settles_at_the_same() -> None:
    target = np.mean(CENTRES, axis=0)
    slow, _ = ran(fedavg(), four(1), 20)
    quick, _ = ran(
        WithServerOptimiser(algorithm=fedavg(), optimiser=ServerOptimiser(momentum=0.5)), four(1), 20
    )
    assert np.linalg.norm(quick.model - target) < 0.2 * np.linalg.norm(slow.model - target)
    algorithm = WithServerOptimiser(algorithm=fedavg(), optimiser=MOMENTUM)
    assert settled(algorithm, four(), 150) == pytest.approx(target, abs=1e-6)


def test_adaptive_steps_are_as_long_in_all_coordinates() -> None:
    """However unlike their scales are: Adam goes by its rate in each of them."""
    learners = quadratics(np.array(CENTRES) * [1.0, 100.0, 1e-4] + [0.0, 0.0, 1e-2], rate=0.1)
    algorithm = WithServerOptimiser(
        algorithm=fedavg(clip=1e4), optimiser=ServerOptimiser(kind="adam", rate=0.01, epsilon=1e-9)
    )
    run, _ = ran(algorithm, learners, 1)
    steps = np.abs(run.model)
    assert steps.max() < 1.01 * steps.min()


# Clients that work alone, a mean of models, and what is common but no model.
WITHOUT_A_MODEL = {"local", "afl"} | {
    name for name in CATALOGUE if name.startswith("lp-proj") or CATALOGUE[name].make is Splitting
}


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_it_goes_round_any_algorithm_with_a_common_model(name: str) -> None:
    entry = CATALOGUE[name]
    inner = entry.build(dim=6, clients=4, **entry.example)
    if name in WITHOUT_A_MODEL:
        with pytest.raises(ParameterError, match="model"):
            WithServerOptimiser(algorithm=inner, optimiser=MOMENTUM)
        return
    algorithm = WithServerOptimiser(algorithm=inner, optimiser=MOMENTUM)
    assert algorithm.table == inner.table
    learners = quadratics(np.random.default_rng(1).normal(size=(4, 6)), rate=0.1, steps=2)
    run, channel = ran(algorithm, learners, 2)
    alone, others = ran(inner, learners, 1)
    assert run.round_info.completed(1)
    assert pack(run.state) == pack(unpack(algorithm.state_type, pack(run.state)))
    assert channel.participants[0].memory.__class__ is others.participants[0].memory.__class__
    assert len(run.model) == len(alone.model) == 6


def test_what_else_a_state_holds_goes_on() -> None:
    """SCAFFOLD's control is that of its own round, and the model is the optimiser's."""
    inner = Scaffold(dim=3, clients=4, clip=50.0, steps=3, rate=0.1, bits=52)
    alone, _ = ran(inner, four(), 1)
    wrapped, _ = ran(WithServerOptimiser(algorithm=inner, optimiser=ServerOptimiser(rate=0.5)), four(), 1)
    assert wrapped.state.inner.control == pytest.approx(alone.state.control, abs=1e-9)
    assert wrapped.model == pytest.approx(0.5 * alone.model, abs=1e-9)


def test_a_round_without_a_result_is_no_step() -> None:
    """Nobody is in the tail: momentum does not go on alone."""
    inner = SimplicialFL(dim=3, clients=4, clip=50.0, loss_bound=1e-3, bins=2)
    algorithm = WithServerOptimiser(algorithm=inner, optimiser=MOMENTUM)
    state = algorithm.start(np.zeros(3))
    steps = algorithm.round(state)
    next(steps)
    steps.send(Total({"losses": np.array([4, 0], np.uint64)}, count=4, invited=4))
    with pytest.raises(StopIteration) as stop:
        steps.send(Total({"update": np.zeros(3), "weight": np.zeros(1)}, count=4, invited=4))
    assert stop.value.value.state is state
    assert "stopped" in stop.value.value.facts


def test_models_of_nested_ones_can_be_moved() -> None:
    measured = WithEvaluation(algorithm=fedavg(), measures=EvaluationMetrics(loss_bound=8.0, bins=0))
    twice = WithServerOptimiser(
        algorithm=WithServerOptimiser(algorithm=measured, optimiser=MOMENTUM), optimiser=ADAM
    )
    run, _ = ran(twice, four(), 2)
    assert run.round_info.completed(1)
    assert run.model.all()
    moved = twice.with_model(run.state, np.ones(3))
    assert np.array_equal(twice.model(moved), np.ones(3))
    assert pack(moved.optimiser) == pack(run.state.optimiser)


def test_a_mean_of_models_cannot_be_moved_but_the_last_one_can() -> None:
    settings: dict[str, Any] = {"dim": 3, "clients": 4, "clip": 10.0, "loss_cap": 5.0}
    with pytest.raises(ParameterError, match="set averaged to False"):
        WithServerOptimiser(algorithm=AFL(**settings), optimiser=ADAM)
    assert WithServerOptimiser(algorithm=AFL(**settings, averaged=False), optimiser=ADAM).needs_all_clients


def test_noise_costs_what_it_did() -> None:
    privacy = PrivacyBudget(
        promise=NoiseAssumptions(clients=4, dropouts=0, colluders=0), goal=Goal(rho=10.0), rounds=5
    )
    inner = fedavg(privacy=privacy)
    wrapped = WithServerOptimiser(algorithm=inner, optimiser=ADAM)
    assert wrapped.budget == privacy
    assert wrapped.max_rho == inner.max_rho is not None
    named = CATALOGUE["fedadam"].build(
        dim=3, clients=4, clip=50.0, weighted=False, server_rate=0.1, privacy=privacy
    )
    assert named.budget == privacy


@pytest.mark.parametrize(
    ("name", "settings", "optimiser"),
    [
        ("fedavgm", {}, ServerOptimiser(momentum=0.9)),
        ("fedavgm", {"server_rate": 0.5, "momentum": 0.3}, ServerOptimiser(rate=0.5, momentum=0.3)),
        ("fedadam", {"server_rate": 0.1}, ServerOptimiser(kind="adam", rate=0.1)),
        ("fedyogi", {"server_rate": 0.1, "beta2": 0.5}, ServerOptimiser(kind="yogi", rate=0.1, beta2=0.5)),
    ],
)
def test_those_of_the_catalogue_are_federated_averaging(
    name: str, settings: dict[str, Any], optimiser: ServerOptimiser
) -> None:
    common: dict[str, Any] = {"clip": 50.0, "weighted": False, "bits": 52}
    named = CATALOGUE[name].build(dim=3, clients=4, **common, **settings)
    assert isinstance(named, FedOpt)
    assert named.optimiser == optimiser
    assert named.algorithm == fedavg()
    written = WithServerOptimiser(algorithm=fedavg(), optimiser=optimiser)
    one, _ = ran(named, four(), 3)
    other, _ = ran(written, four(), 3)
    assert one.model == pytest.approx(other.model, abs=1e-9)


def test_clients_in_other_processes_get_an_equal_one() -> None:
    for algorithm in (
        WithServerOptimiser(algorithm=fedavg(), optimiser=ADAM),
        CATALOGUE["fedavgm"].build(**SMALL),
    ):
        other = pickle.loads(pack_algorithm(algorithm))  # noqa: S301  # it was made here
        assert other == algorithm
        assert other.state_type is algorithm.state_type


def test_secure_and_plain_sums_give_the_same_bits() -> None:
    assert_same_bits(WithServerOptimiser(algorithm=fedavg(bits=32), optimiser=ADAM), four())


@pytest.mark.parametrize(
    ("name", "wrong", "sentence"),
    [
        ("fedadam", {}, "server_rate must be set"),
        ("fedyogi", {"server_rate": 0.0}, "server_rate must be a number above 0"),
        ("fedavgm", {"server_rate": -1.0}, "server_rate must be a number above 0"),
        ("fedavgm", {"momentum": 1.0}, "momentum must be less than 1"),
        ("fedavgm", {"beta1": 0.5}, "beta1 is what makes it fedavgm"),
        ("fedadam", {"server_rate": 0.1, "epsilon": 0.0}, "epsilon must be a number above 0"),
        ("fedavgm", {"clip": None}, "clip must be set"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(name: str, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParameterError, match=sentence):
        CATALOGUE[name].build(dim=3, clients=4, **({"clip": 1.0} | wrong))


def test_a_personal_model_is_that_of_the_algorithm() -> None:
    inner = Ditto(dim=2, clients=4, clip=10.0)
    wrapped: Any = WithServerOptimiser(algorithm=inner, optimiser=ServerOptimiser())
    memory, model = OwnModel(np.ones(2)), np.zeros(2)
    assert wrapped.personal(memory, model, four()[0]) is memory.model
    assert wrapped.personal(OwnModel(), model, four()[0]) is model
