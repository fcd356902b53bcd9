"""What robust algorithms withstand, and what nothing withstands: two attacks by a quarter of all clients.

Corrupted models, honestly summed: a geometric median stands where a mean falls. Residues forged inside the
sum: masked inputs cannot be checked, so one client shifts a total as it likes, and every algorithm falls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from protocols.algorithm import AnyAlgorithm, NoMemory
from protocols.fedavg import FedAvg
from protocols.iterative_aggregation import Residuals
from protocols.learner import Learner, Steering
from protocols.order_statistics import MedianByCounts, TrimmedMean
from protocols.quadratic_learner import QuadraticLearner
from protocols.rfa import RFA, RFA1
from protocols.rounds import Query
from protocols.run import Run
from protocols.serialisation import Vector
from secagg.insecure_seeds import insecure_client_hooks, insecure_server_hooks
from secagg.local_session import local_machines
from secagg.machine_hooks import ClientHooks
from secagg.messages import MAX_SUMS
from secagg.query_context import Question
from secagg.residue_packing import Residues
from secagg.sum_spec import Total
from sims.runtime import SessionChannel, Setting, insecure_plain_sum, secure_sum
from sims.runtime.secure import ObservedSession
from sims.runtime.session_channel import SimulatedSessionPlan

CLIENTS, BAD, DIM, ROUNDS = 12, 3, 5, 4  # a quarter is bad: members 0, 1 and 2
SEED = b"attacks on algorithms"
RATE = 0.5
CENTRES = np.random.default_rng(11).normal(size=(CLIENTS, DIM)) * 0.1 + np.array([3.0, -2.0, 1.0, 0.5, 2.0])
GOAL = CENTRES[BAD:].mean(axis=0)  # where honest clients want to go
RADIUS = float(np.linalg.norm(CENTRES[BAD:] - GOAL, axis=1).max())
# So far a geometric median is pulled away at most by a quarter of all weight.
BREAKDOWN = 2 * (1 - BAD / CLIENTS) / (1 - 2 * BAD / CLIENTS) * RADIUS

ROBUST: dict[str, AnyAlgorithm] = {
    "rfa": RFA(dim=DIM, clients=CLIENTS, weighted=False),
    "rfa from the mean": RFA(dim=DIM, clients=CLIENTS, start_at="mean", clip=100.0, steps=5, weighted=False),
    "rfa1": RFA1(dim=DIM, clients=CLIENTS, weighted=False),
    "median": MedianByCounts(dim=DIM, clients=CLIENTS, reach=4.0, steps=8),
    "trimmed mean": TrimmedMean(dim=DIM, clients=CLIENTS, reach=4.0, steps=8, trim=0.25),
}
MEAN = FedAvg(dim=DIM, clients=CLIENTS, clip=100.0, weighted=False)
EVERY: dict[str, AnyAlgorithm] = {"fedavg": MEAN, **ROBUST}


def honest_learner(member: int) -> QuadraticLearner:
    return QuadraticLearner(CENTRES[member], rate=RATE, steps=2)


# --- corrupted models, honestly summed --------------------------------------------------------------

Corruption = Callable[[Vector, Vector], Vector]  # from the model and the honest update to another update


@dataclass
class CorruptLearner(QuadraticLearner):
    """Trains as the others do, and then puts another update in place of what came out."""

    corruption: Corruption = lambda model, update: update

    def train(
        self,
        start: Vector,
        steering: Steering = Steering(),  # noqa: B008  # a frozen value
        *,
        steps: int | None = None,
        rate: float | None = None,
        only: Vector | None = None,
    ) -> Vector:
        update = super().train(start, steering, steps=steps, rate=rate, only=only) - start
        return start + self.corruption(start, update)


def flipped_and_scaled(model: Vector, update: Vector) -> Vector:
    return -10 * update


def far_model(model: Vector, update: Vector) -> Vector:
    return np.full(DIM, -50.0) - model


def omniscient(model: Vector, update: Vector) -> Vector:
    """All bad clients submit the same: it turns the mean of all honest updates around."""
    updates = np.array([honest_learner(k).train(model) - model for k in range(CLIENTS)])
    corrupt: Vector = updates[:BAD].mean(axis=0) - 2 * (CLIENTS / BAD) * updates.mean(axis=0)
    return corrupt


def after_corruption(algorithm: AnyAlgorithm, corruption: Corruption, make: Any) -> float:
    """How far from the honest clients' goal a few rounds lead."""
    learners: dict[int, Learner] = {
        k: CorruptLearner(CENTRES[k], rate=RATE, steps=2, corruption=corruption)
        if k < BAD
        else honest_learner(k)
        for k in range(CLIENTS)
    }
    run = Run(
        algorithm, make(algorithm, learners, Setting(insecure_seed=SEED)), algorithm.start(np.zeros(DIM))
    )
    for _ in range(ROUNDS):
        assert run.round().completed
    return float(np.linalg.norm(run.model - GOAL))


LEFT = 0.1  # of the way to the goal, after these rounds
CORRUPTIONS = [flipped_and_scaled, far_model, omniscient]


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("name", ROBUST)
def test_robust_aggregates_stand_where_updates_are_corrupted(name: str, corruption: Corruption) -> None:
    assert after_corruption(ROBUST[name], corruption, insecure_plain_sum) < LEFT * np.linalg.norm(GOAL)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_mean_falls_where_updates_are_corrupted(corruption: Corruption) -> None:
    """It ends farther from the goal than it began."""
    assert after_corruption(MEAN, corruption, insecure_plain_sum) > np.linalg.norm(GOAL)


def test_few_steps_from_the_mean_do_not_reach_the_median() -> None:
    """Far models take the mean far away, and two steps do not lead back: it ends farther than it began.

    Start at the model, or take more steps: a median is robust, two steps towards it need not be.
    """
    two = RFA(dim=DIM, clients=CLIENTS, start_at="mean", clip=100.0, steps=2, weighted=False)
    assert after_corruption(two, far_model, insecure_plain_sum) > np.linalg.norm(GOAL)


def test_rfa_stands_through_secure_sums_as_well() -> None:
    secure = after_corruption(ROBUST["rfa"], omniscient, secure_sum)
    assert secure == after_corruption(ROBUST["rfa"], omniscient, insecure_plain_sum)
    assert secure < BREAKDOWN


# --- residues forged inside the sum -----------------------------------------------------------------

# Where the forger wants the first coordinate to be: beyond all that a quarter of corrupted models could do.

TARGET = -20.0
FORGER = 0
NOBODY: frozenset[int] = frozenset()


def to_target(model: Vector, update: Vector) -> Vector:
    """An honest update but for the first coordinate."""
    return np.array([TARGET - model[0], *update[1:]])


def forge(question: Question, residues: tuple[Residues, ...]) -> tuple[Residues, ...]:
    """Answer as if it were as many clients as there are: add the first residue in every part so often.

    That outweighs all others, and the total still fits its ring. No mask minds.
    """
    for part, elements in zip(question.spec.parts, residues, strict=False):
        elements[0] = CLIENTS * int(elements[0]) % (1 << part.bits)
    return residues


def forged_session(forgers: frozenset[int], plan: SimulatedSessionPlan) -> ObservedSession:
    """Real machines, some of which forge their inputs before they mask them."""
    seed = SEED + bytes([plan.number])

    def client_hooks(member: int) -> ClientHooks:
        hooks = insecure_client_hooks(seed, member, rounding=SEED)
        return replace(hooks, transform=forge) if member in forgers else hooks

    server, clients = local_machines(
        table=plan.table,
        params=plan.setting.params,
        members=plan.members,
        memories=plan.memories,
        unnoised_sums=1 << 20,
        server_hooks=insecure_server_hooks(seed),
        client_hooks=client_hooks,
    )
    return ObservedSession(server, clients, plan)


class TellingChannel(SessionChannel):
    """Keeps the totals that were released."""

    def __init__(
        self, algorithm: AnyAlgorithm, forgers: frozenset[int], trust: str = "curious_server"
    ) -> None:
        learners: dict[int, Learner] = {k: honest_learner(k) for k in range(CLIENTS)}
        learners[FORGER] = CorruptLearner(CENTRES[FORGER], rate=RATE, steps=2, corruption=to_target)
        sums = min(MAX_SUMS, ROUNDS * algorithm.most_sums)
        setting = Setting(trust=trust, insecure_seed=SEED, sums=sums)
        super().__init__(algorithm, learners, setting, partial(forged_session, forgers))
        self.totals: list[Total] = []

    def ask(self, query: Query) -> Total:
        self.totals.append(super().ask(query))
        return self.totals[-1]


@pytest.mark.parametrize("trust", ["curious_server", "malicious_server"])
def test_forged_residues_shift_a_total_by_exactly_as_much(trust: str) -> None:
    """No refusal, no corrupt total: nobody can tell. A direction of norm 1 counts twelve times."""
    algorithm = RFA(dim=DIM, clients=CLIENTS, steps=1, weighted=False)
    direction, weight, _ = algorithm.sums()[0].spec.parts
    totals = []
    for forgers in (NOBODY, frozenset({FORGER})):
        channel = TellingChannel(algorithm, forgers, trust)
        assert Run(algorithm, channel, algorithm.start(np.zeros(DIM))).round().completed
        totals += channel.totals
    honest, forged = totals
    client = algorithm.client(channel.participants[FORGER].learner, NoMemory())
    own = client.answer(Residuals(np.zeros(DIM), 0))
    for part in (direction, weight):
        shift = forged[part.name] - honest[part.name]
        expected = (CLIENTS - 1) * np.asarray(own[part.name])[0]
        assert shift[0] == pytest.approx(expected, rel=1e-6)
        assert not shift[1:].any()
    assert forged[direction.name][0] < 0 < honest[direction.name][0]
    assert forged.count == honest.count == CLIENTS


@pytest.mark.parametrize("name", EVERY)
def test_every_algorithm_falls_where_one_client_forges_residues(name: str) -> None:
    channel = TellingChannel(EVERY[name], frozenset({FORGER}))
    run = Run(EVERY[name], channel, EVERY[name].start(np.zeros(DIM)))
    for _ in range(ROUNDS):
        assert run.round().completed
    assert abs(run.model[0] - GOAL[0]) > 5 * BREAKDOWN


@pytest.mark.parametrize("name", ROBUST)
def test_without_forged_residues_three_such_clients_do_no_harm(name: str) -> None:
    """The same corrupted models, honestly summed."""
    assert after_corruption(ROBUST[name], to_target, insecure_plain_sum) < BREAKDOWN
