"""FedAlt and FedSim: what a reference in numpy does, and nothing of a client's own parameters in any sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.fedavg import FedAvg
from protocols.iterative_aggregation import Residuals
from protocols.model_index_ranges import IndexRanges
from protocols.partial_personalisation import FedAlt, FedSim, OwnPart, Partial, Shared
from protocols.participant import Participant
from protocols.privacy_budget import PrivacyBudget
from protocols.quadratic_learner import QuadraticLearner
from protocols.query_encoding import encode_query
from protocols.rounds import RoundInfo
from protocols.run import Run
from protocols.serialisation import Vector, as_vector, pack
from protocols.server_optimiser import ServerOptimiser, WithServerOptimiser
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import MalformedMessage, ParameterError
from secagg.local_session import Stage
from secagg.noise.privacy_goal import Goal
from secagg.trust_levels import Trust
from sims.runtime import Setting, insecure_plain_sum
from tests.protocols.baselines import Learners, all_missing, assert_same_bits, missing, ran

DIM, CLIENTS, RATE, STEPS = 5, 3, 0.1, 4
PART = "1:2, -1:"
OWN = IndexRanges.parse(PART, DIM)
START = as_vector([1.0, -1.0, 0.5, 2.0, -2.0])


class Coupled(QuadraticLearner):
    """1/2 (w - c)' A (w - c) with a full matrix A, so that it matters which part moves first."""

    matrix: Vector

    def gradient(self, model: Vector) -> Vector:
        return np.asarray(self.matrix @ (model - self.centre))

    def loss(self, model: Vector) -> float:
        gap = model - self.centre
        return float(gap @ self.matrix @ gap / 2)


def coupled(steps: tuple[int, ...] = (4, 2, 6)) -> Learners:
    rng, found = np.random.default_rng(5), {}
    for k, count in enumerate(steps):
        root = rng.normal(size=(DIM, DIM))
        learner = Coupled(rng.normal(size=DIM), samples=3 + k, rate=RATE, steps=count)
        learner.matrix = root @ root.T / DIM + np.eye(DIM) / 2
        found[k] = learner
    return dict(found)


def made(kind: type[Partial], **other: Any) -> Partial:
    usual: dict[str, Any] = {"clip": 100.0, "bits": 60, "personal_part": PART, "initial": START}
    return kind(dim=DIM, clients=CLIENTS, **(usual | other))


def started(algorithm: Partial, learners: Any, rounds: int, **setting: Any) -> tuple[Run[Any], Any]:
    """A run from the first model."""
    channel = insecure_plain_sum(algorithm, learners, Setting(**setting))
    run = Run(algorithm, channel, algorithm.start(START))
    for _ in range(rounds):
        run.round()
    return run, channel


# --- against a reference ---


def reference(
    learners: Learners,
    rounds: int,
    *,
    alternate: bool,
    weights: list[float],
    pull: float = 0.0,
    most: int = 1000,
) -> tuple[Vector, list[Vector]]:
    """Shared parameters and everybody's own after so many rounds, written once more from the paper."""
    mine = OWN.mask() > 0
    shared, owns = START[~mine], [START[mine] for _ in learners]
    for _ in range(rounds):
        changes = []
        for k, learner in learners.items():
            model = np.empty(DIM)
            model[~mine], model[mine] = shared, owns[k]
            if alternate:
                for _ in range(min(learner.steps, most)):
                    step = learner.gradient(model)[mine] + 2 * pull * (model[mine] - START[mine])
                    model[mine] -= RATE * step
                for _ in range(learner.steps):
                    model[~mine] -= RATE * learner.gradient(model)[~mine]
            else:
                for _ in range(learner.steps):
                    model -= RATE * learner.gradient(model)
            owns[k] = model[mine]
            changes.append(model[~mine] - shared)
        shared = shared + np.average(changes, axis=0, weights=weights)
    return shared, owns


@pytest.mark.parametrize(
    ("kind", "other", "against"),
    [
        (FedSim, {}, {"alternate": False, "weights": [4, 2, 6]}),
        (FedAlt, {}, {"alternate": True, "weights": [4, 2, 6]}),
        (FedAlt, {"weigh_by": "samples"}, {"alternate": True, "weights": [3, 4, 5]}),
        (FedAlt, {"weighted": False, "pull": 0.3}, {"alternate": True, "weights": [1, 1, 1], "pull": 0.3}),
        (FedAlt, {"personal_steps": 3, "cap": 4}, {"alternate": True, "weights": [4, 2, 4], "most": 3}),
    ],
)
def test_it_does_what_a_reference_does(
    kind: type[Partial], other: dict[str, Any], against: dict[str, Any]
) -> None:
    run, channel = started(made(kind, **other), coupled(), 5)
    shared, owns = reference(coupled(), 5, **against)
    assert OWN.rest.take(run.model) == pytest.approx(shared, abs=1e-9)
    for k, participant in channel.participants.items():
        assert participant.memory.values == pytest.approx(owns[k], abs=1e-9)
        used = participant.personal(run.model)
        assert used == pytest.approx(OWN.join(owns[k], shared), abs=1e-9)
    np.testing.assert_array_equal(OWN.take(run.model), OWN.take(START))


def test_with_single_steps_both_settle_where_every_part_is_best() -> None:
    """Where the mean of all losses is stationary in the shared parameters and in everybody's own."""
    for kind in (FedAlt, FedSim):
        learners = coupled((1, 1, 1))
        run, channel = started(made(kind), learners, 300)
        gradients = [
            learners[k].gradient(each.personal(run.model)) for k, each in channel.participants.items()
        ]
        for gradient in gradients:
            assert OWN.take(gradient) == pytest.approx(np.zeros(2), abs=1e-5)
        assert OWN.rest.take(np.mean(gradients, axis=0)) == pytest.approx(np.zeros(3), abs=1e-5)
        assert min(np.linalg.norm(each) for each in gradients) > 0.1


def test_with_nothing_personal_it_is_federated_averaging() -> None:
    run, _ = started(made(FedSim, personal_part="", weighted=False), coupled(), 3)
    averaging = FedAvg(dim=DIM, clients=CLIENTS, clip=100.0, bits=60, weighted=False)
    channel = insecure_plain_sum(averaging, coupled(), Setting())
    other = Run(averaging, channel, averaging.start(START))
    for _ in range(3):
        other.round()
    assert run.model == pytest.approx(other.model, abs=1e-9)


def test_a_server_may_have_an_optimiser_which_moves_nothing_that_is_personal() -> None:
    adam = ServerOptimiser(kind="adam", rate=0.1)
    algorithm = WithServerOptimiser(algorithm=made(FedSim, weighted=False), optimiser=adam)
    channel = insecure_plain_sum(algorithm, coupled(), Setting())
    run = Run(algorithm, channel, algorithm.start(START))
    run.round()
    update = np.mean([OWN.rest.take(each.train(START) - START) for each in coupled().values()], axis=0)
    moved, _ = adam.step(adam.start(3), as_vector(OWN.rest.take(START)), as_vector(update))
    assert OWN.rest.take(run.model) == pytest.approx(moved, abs=1e-8)
    np.testing.assert_array_equal(OWN.take(run.model), OWN.take(START))


# --- what is kept, and what is used ---


def test_before_its_first_round_a_client_has_the_first_models_own_parameters() -> None:
    algorithm, learner = made(FedAlt), coupled()[0]
    common = as_vector(np.arange(DIM, dtype=float))
    used = algorithm.personal(algorithm.first_memory(), common, learner)
    np.testing.assert_array_equal(used, OWN.put(common, OWN.take(START)))


def test_finetuning_moves_own_parameters_alone_and_leaves_nothing() -> None:
    algorithm, learner = made(FedSim, finetune=3, finetune_rate=0.2), coupled()[0]
    memory = OwnPart(as_vector([0.5, 0.25]))
    used = algorithm.personal(memory, START, learner)
    expected = OWN.put(START, np.array([0.5, 0.25]))
    for _ in range(3 * learner.steps):
        expected = expected - 0.2 * OWN.mask() * learner.gradient(expected)
    assert used == pytest.approx(expected, abs=1e-12)
    np.testing.assert_array_equal(OWN.rest.take(used), OWN.rest.take(START))
    assert learner.loss(used) < learner.loss(OWN.put(START, np.array([0.5, 0.25])))


def test_the_penalty_holds_own_parameters_near_its_centre() -> None:
    memory, learner = OwnPart(as_vector([3.0, 3.0])), coupled()[0]
    for centre, pull_to in ((OWN.take(START), "start"), (np.zeros(2), "zero")):
        algorithm = made(FedAlt, pull=2.0, pull_to=pull_to, finetune=100)
        used = algorithm.personal(memory, START, learner)
        slope = learner.gradient(used) + 4.0 * (used - OWN.put(START, centre))
        assert OWN.take(slope) == pytest.approx(np.zeros(2), abs=1e-6)


def test_without_a_state_everybody_begins_anew_in_every_round() -> None:
    run, channel = started(made(FedAlt, stateful=False), coupled(), 2)
    assert all(each.memory == OwnPart() for each in channel.participants.values())
    once, _ = started(made(FedAlt), coupled(), 1)
    shared, _ = reference(coupled(), 1, alternate=True, weights=[4, 2, 6])
    assert OWN.rest.take(once.model) == pytest.approx(shared, abs=1e-9)
    twice, _ = started(made(FedAlt), coupled(), 2)
    assert np.linalg.norm(run.model - twice.model) > 1e-3


def test_a_round_that_fails_leaves_own_parameters_as_they_were() -> None:
    run, channel = ran(made(FedAlt), coupled(), 2, dropouts=all_missing(2, Stage.REVEAL))
    before = [pack(each.memory) for each in channel.participants.values()]
    assert not run.round().completed
    assert [pack(each.memory) for each in channel.participants.values()] == before


@pytest.mark.parametrize("other", [{}, {"robust": True, "median_steps": 2}])
def test_only_who_was_counted_has_new_ones(other: dict[str, Any]) -> None:
    run, channel = ran(made(FedAlt, **other), coupled(), 2, dropouts=missing(1, Stage.MASK, 2))
    before = [pack(each.memory) for each in channel.participants.values()]
    assert run.round().completed
    after = [pack(each.memory) for each in channel.participants.values()]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, False]


# --- what is sent ---


@pytest.mark.parametrize("kind", [FedAlt, FedSim])
@pytest.mark.parametrize("other", [{}, {"robust": True, "median_steps": 2}])
def test_nothing_of_own_parameters_is_asked_for_or_sent(kind: type[Partial], other: dict[str, Any]) -> None:
    """Queries and sums have as many numbers as are shared, and what is sent is a function of these alone."""
    algorithm = made(kind, **other)
    (spec,) = algorithm.table.values()  # type: ignore[union-attr]
    assert spec.parts[0].size == 3
    assert all(part.size == 1 for part in spec.parts[1:])
    run, channel = started(algorithm, coupled(), 1)
    asked: list[Any] = []

    def ask(query: Any, whole: Any = channel.ask) -> Any:
        asked.append(query)
        return whole(query)

    channel.ask = ask
    run.round()
    vectors = [each.point if isinstance(each, Residuals) else each.shared for each in asked]
    assert vectors
    assert all(len(vector) == 3 for vector in vectors)


def test_own_parameters_that_do_not_touch_the_shared_ones_change_no_bit_of_an_answer() -> None:
    """With a loss that is a sum over coordinates, what is sent does not depend on a client's own at all."""
    learner = QuadraticLearner(as_vector(np.arange(DIM, dtype=float)), steps=STEPS)
    answers = []
    for own in ([0.0, 0.0], [40.0, -7.0]):
        client = made(FedAlt).client(learner, OwnPart(as_vector(own)))
        answers.append(client.answer(Shared(as_vector([1.0, 2.0, 3.0]))))
        assert not np.array_equal(client.memory().values, own)  # type: ignore[arg-type]
    for name, values in answers[0].items():
        np.testing.assert_array_equal(values, answers[1][name])


@pytest.mark.parametrize("wrong", [np.zeros(DIM), np.zeros(2), np.full(3, 1e300)])
@pytest.mark.parametrize("robust", [False, True])
def test_queries_of_another_length_or_size_are_refused(wrong: Vector, robust: bool) -> None:
    client = Participant(made(FedAlt, robust=robust), coupled()[0], trust=Trust.MALICIOUS)
    query = Residuals(as_vector(wrong), 0) if robust else Shared(as_vector(wrong))
    with pytest.raises(MalformedMessage, match=r"elements, not 3|numbers beyond"):
        client.answer(query.kind, encode_query(RoundInfo(), query), round_number=0, invited=CLIENTS)
    assert client.memory == OwnPart()


def test_whole_models_cannot_be_asked_for() -> None:
    """As a query of another algorithm, or by another kind's name."""
    client = Participant(made(FedAlt), coupled()[0], trust=Trust.CURIOUS)
    query = Residuals(as_vector(np.zeros(3)), 0)
    for kind in ("residuals", "update", "shared"):
        with pytest.raises(MalformedMessage):
            client.answer(kind, encode_query(RoundInfo(), query), round_number=0, invited=CLIENTS)


def test_secure_sums_give_the_same_bits() -> None:
    assert_same_bits(made(FedAlt, robust=True, bits=32), coupled())


# --- robust ---


def test_a_median_of_the_shared_part_stands_where_a_mean_is_carried_away() -> None:
    learners = {k: QuadraticLearner(as_vector(np.full(DIM, 0.1 * k)), steps=STEPS) for k in range(5)}
    learners[4].centre = as_vector(np.full(DIM, 1000.0))
    found = {}
    for robust in (False, True):
        algorithm = FedSim(
            dim=DIM, clients=5, personal_part=PART, robust=robust, median_steps=6, clip=1e5, bits=48
        )
        run, channel = ran(algorithm, learners, 20)
        found[robust] = float(np.abs(run.model).max())
        # What is personal follows everybody, the outlier as well.
        assert channel.participants[4].memory.values.min() > 900.0
    assert found[True] < 1.0 < 100.0 < found[False]


def test_noise_is_for_the_shared_numbers_alone() -> None:
    promise = NoiseAssumptions(clients=CLIENTS, dropouts=0, colluders=0)
    privacy = PrivacyBudget(promise=promise, goal=Goal(rho=1000.0), rounds=10)
    algorithm = made(FedAlt, privacy=privacy, weighted=False, clip=1.0)
    assert algorithm.averaging.noise is not None
    assert algorithm.budget is privacy
    assert "with noise" in algorithm.sums()[0].reveals


# --- parameters ---


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"personal_part": None}, "personal_part must be set: what of the model stays"),
        ({"personal_part": "output"}, "personal_part: 'output' is no range"),
        ({"personal_part": ":"}, "personal_part has all parameters"),
        ({"clip": None}, "clip must be set"),
        ({"weigh_by": "luck"}, 'weigh_by must be "batches" or "samples"'),
        ({"finetune": -1}, "finetune must be a whole number from 0"),
        ({"finetune_rate": 0.0}, "finetune_rate must be a number above 0"),
        ({"initial": as_vector([1.0])}, "a vector of 5 numbers is meant"),
        ({"robust": True, "median_steps": 0}, "median_steps must be a whole number from 1"),
        ({"robust": True, "cap": 0}, "cap must be a whole number from 1"),
        ({"personal_steps": -1}, "personal_steps must be a whole number from 0"),
        ({"personal_rate": -1.0}, "personal_rate must be a number above 0"),
        ({"pull": -1.0}, "pull must be a number of at least 0"),
        ({"pull_to": "mean"}, 'pull_to must be "start" or "zero"'),
        ({"stateful": "no"}, "stateful must be true or false"),
    ],
)
def test_what_makes_no_sense_is_refused(other: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError) as caught:
        made(FedAlt, **other)
    assert said in str(caught.value)


def test_a_median_has_no_private_variant() -> None:
    promise = NoiseAssumptions(clients=CLIENTS, dropouts=0, colluders=0)
    privacy = PrivacyBudget(promise=promise, goal=Goal(rho=1.0), rounds=1)
    with pytest.raises(ParameterError, match="no private variant"):
        made(FedSim, robust=True, privacy=privacy, weighted=False)


def test_what_is_private_is_in_no_repr() -> None:
    assert "7.5" not in repr(OwnPart(as_vector([7.5])))
