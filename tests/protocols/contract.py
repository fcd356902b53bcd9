"""The cases of the contract suite, runs of them that can be compared bit for bit, and channels that watch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import fsum
from typing import Any

import numpy as np

from protocols.afl import AFL
from protocols.algorithm import LEAST_WEIGHT, AnyAlgorithm
from protocols.apfl import APFL
from protocols.ditto import Ditto
from protocols.evaluation import Evaluation, EvaluationMetrics, WithEvaluation
from protocols.fedavg import FedAvg
from protocols.fedbc import FedBC, PerFedBC
from protocols.fedplus import FedPlus, PenaltyGroup, Psi
from protocols.learner import Learner
from protocols.local_only_training import LocalTraining
from protocols.lpproj import LpProj1, LpProj2
from protocols.order_statistics import MedianByCounts, TrimmedMean
from protocols.partial_personalisation import FedAlt, FedSim, LGFedAvg
from protocols.per_fedavg import PerFedAvg
from protocols.pfedme import PFedMe
from protocols.privacy_budget import HistogramBudget, PublicStepBudget
from protocols.qffl import QFFL
from protocols.quadratic_learner import QuadraticLearner
from protocols.quantised import Quantised
from protocols.query_encoding import encode_query
from protocols.rfa import RFA, RFA1
from protocols.rounds import Query, RoundInfo
from protocols.rsa import RSA
from protocols.run import RoundReport, Run
from protocols.scaffold import Scaffold
from protocols.serialisation import Vector, as_vector, pack
from protocols.server_optimiser import FedOpt, ServerOptimiser, WithServerOptimiser
from protocols.simplicial import SimplicialFL
from protocols.sketched_sgd import SketchedSGD
from protocols.splitting import Splitting
from protocols.tilted_erm import TERM
from secagg.distributed_noise import NoiseAssumptions
from secagg.noise.privacy_goal import Goal
from secagg.sum_spec import Total
from secagg.trust_levels import Trust
from sims.runtime import SessionChannel, Setting, insecure_plain_sum, no_dropouts, secure_sum
from sims.runtime.sum_and_dropout_settings import DropoutSchedule
from tests.protocols.splitting_problem import SETTINGS as SPLITTINGS

DIM = 6
CLIENTS = 5
SEED = b"contract"

MakeChannel = Callable[[AnyAlgorithm, Mapping[int, Learner], Setting], SessionChannel]
PLAIN: MakeChannel = insecure_plain_sum
SECURE: MakeChannel = secure_sum
CHANNELS: Mapping[str, tuple[MakeChannel, Trust]] = {
    "plain": (PLAIN, Trust.CURIOUS),
    "secure-curious": (SECURE, Trust.CURIOUS),
    "secure-malicious": (SECURE, Trust.MALICIOUS),
}


def quadratics(dim: int, clients: int, *, spread: float = 1.0) -> dict[int, Learner]:
    """Learners that want different models and have different numbers of samples."""
    rng = np.random.default_rng(dim * 1000 + clients)
    return {
        member: QuadraticLearner(
            as_vector(spread * rng.normal(size=dim)),
            curvature=as_vector(rng.uniform(0.5, 1.5, size=dim)),
            samples=3 * member + 2,
            steps=4,
        )
        for member in range(clients)
    }


@dataclass(frozen=True)
class Case:
    """An algorithm under test.

    `make`      a small instance for (dim, clients).
    `learners`  its clients' for (dim, clients).
    `same_bits` whether plain and secure sums agree to the last bit: not where noise is removed or rotated,
                both of which depend on secrets of the session.
    `rounding`  whether the rounding of a sum shows in its state: not where all sums are counts.
    `fewer`     kinds of sums that a round may ask less often than it could.
    """

    name: str
    make: Callable[[int, int], AnyAlgorithm]
    learners: Callable[[int, int], dict[int, Learner]] = quadratics
    same_bits: bool = True
    rounding: bool = True
    fewer: frozenset[str] = field(default_factory=frozenset)

    def algorithm(self, clients: int = CLIENTS) -> AnyAlgorithm:
        return self.make(DIM, clients)

    @property
    def asks(self) -> bool:
        return self.algorithm().table is not None

    @property
    def self_selecting(self) -> bool:
        """Whether some sum lets a malicious server silence clients."""
        return any(
            each.least_weight < LEAST_WEIGHT and not each.spec.is_private for each in self.algorithm().sums()
        )

    def trusts(self) -> tuple[Trust, ...]:
        return (Trust.CURIOUS,) if self.self_selecting else (Trust.CURIOUS, Trust.MALICIOUS)


_ABOUT = ("learners", "same_bits", "rounding", "fewer")


def _case(name: str, kind: Callable[..., AnyAlgorithm], /, **settings: Any) -> Case:
    about = {key: settings.pop(key) for key in _ABOUT if key in settings}
    return Case(name, lambda dim, clients: kind(dim=dim, clients=clients, **settings), **about)


def _optimised(inner: Callable[..., AnyAlgorithm], optimiser: ServerOptimiser, **settings: Any) -> Case:
    def make(dim: int, clients: int) -> AnyAlgorithm:
        return WithServerOptimiser(algorithm=inner(dim=dim, clients=clients, **settings), optimiser=optimiser)

    return Case(f"{optimiser.kind}-{inner.__name__.lower()}", make)


def _evaluated(inner: Callable[..., AnyAlgorithm], measures: EvaluationMetrics, **settings: Any) -> Case:
    def make(dim: int, clients: int) -> AnyAlgorithm:
        return WithEvaluation(algorithm=inner(dim=dim, clients=clients, **settings), measures=measures)

    return Case(f"evaluated-{inner.__name__.lower()}", make)


PROMISE = NoiseAssumptions(clients=CLIENTS, dropouts=2, colluders=0)
HYBRID = (
    PenaltyGroup(start=0, stop=2, psi="squared", clip=10.0),
    PenaltyGroup(start=2, stop=4, psi="norm", delta=0.1),
    PenaltyGroup(start=4, stop=DIM, psi="coordinates", delta=0.1),
)

# Few enough bits that rounding shows in a state.
FINE: Mapping[str, Any] = {"clip": 10.0, "eta": 0.5, "bits": 48}

CASES: tuple[Case, ...] = (
    _case("fedavg", FedAvg, clip=10.0, cap=8),
    _case("fedavg-unweighted", FedAvg, clip=10.0, weighted=False),
    _case("fedprox", FedAvg, clip=10.0, mu=0.5),
    _case("fedavgm", FedOpt, clip=10.0, momentum=0.9),
    _case("fedadam", FedOpt, clip=10.0, kind="adam", server_rate=0.1, cap=8),
    _case("fedyogi", FedOpt, clip=10.0, kind="yogi", server_rate=0.1, weighted=False),
    _optimised(Scaffold, ServerOptimiser(momentum=0.5), clip=10.0, steps=4, rate=0.1),
    _case("local", LocalTraining, rounding=False),
    _case("rfa", RFA, nu=0.01, steps=2, cap=8),
    _case("rfa-mean", RFA, nu=0.01, steps=2, start_at="mean", clip=10.0, fast=True),
    _case("rfa-1", RFA1, nu=0.01, weighted=False),
    _case(
        "rfa-private",
        RFA,
        nu=0.5,
        steps=2,
        weighted=False,
        same_bits=False,
        privacy=PublicStepBudget(promise=PROMISE, goal=Goal(rho=1000.0), rounds=60, step=0.5),
    ),
    _case("median", MedianByCounts, reach=1.0, steps=2, rounding=False),
    _case("trimmed-mean", TrimmedMean, reach=1.0, steps=3, trim=0.2),
    _case("simplicial", SimplicialFL, clip=10.0, loss_bound=8.0, bins=8),
    _case("simplicial-floor", SimplicialFL, clip=10.0, loss_bound=8.0, bins=8, floor=0.2, weighted=True),
    _case("simplicial-smooth", SimplicialFL, clip=10.0, loss_bound=8.0, bins=8, rule="quadratic", nu=1.0),
    _case(
        "simplicial-private",
        SimplicialFL,
        clip=10.0,
        loss_bound=8.0,
        bins=8,
        same_bits=False,
        privacy=HistogramBudget(promise=PROMISE, goal=Goal(rho=1000.0), rounds=60),
    ),
    _case("fedavg+", partial(FedPlus, psi=Psi.SQUARED), clip=10.0),
    _case("fedgeomed+", partial(FedPlus, psi=Psi.NORM), steps=2, weighted=True, cap=8, tolerance=0.0),
    _case("fedcomed+", partial(FedPlus, psi=Psi.COORDINATES), steps=2, tolerance=0.0, fast=False),
    _case("fed+hybrid", FedPlus, groups=HYBRID, steps=2, tolerance=0.0),
    _case("fedbc", FedBC, clip=10.0, lambda_max=4.0),
    _case("per-fedbc", PerFedBC, clip=10.0, lambda_max=4.0),
    _case("qffl", QFFL, clip=10.0, loss_cap=8.0, rate=0.1),
    _case("term", TERM, clip=10.0, loss_cap=8.0),
    _case("afl", AFL, clip=10.0, loss_cap=8.0),
    _case("scaffold", Scaffold, clip=10.0, steps=4, rate=0.1),
    _case("ditto", Ditto, clip=10.0),
    _case("pfedme", PFedMe, clip=10.0, rounds=2, personal_rate=0.05),
    _case("per-fedavg", PerFedAvg, clip=10.0),
    _case("apfl", APFL, clip=10.0, adaptive=True),
    _case("lp-proj-1", LpProj1, subspace=3, rounds=2, personal_steps=4, personal_rate=0.05, rounding=False),
    _case("lp-proj-2", LpProj2, clip=10.0, subspace=3, rounds=2, personal_steps=4, personal_rate=0.05),
    _case("rsa", RSA, rate=0.1, schedule="sqrt", rounding=False),
    _case("lg-fedavg", LGFedAvg, clip=10.0, shared_part="-2:"),
    _case("fedalt", FedAlt, clip=10.0, personal_part="1:3", pull=0.1, personal_steps=2, cap=8),
    _case("fedalt-robust", FedAlt, personal_part=":2, -1:", robust=True, median_steps=2, weigh_by="samples"),
    _case("fedsim", FedSim, clip=10.0, personal_part="-2:", weighted=False),
    _case("splitting", Splitting, **FINE, alpha=1.5, beta=1.5, gamma=0.7, weighted=True, cap=8),
    *(_case(name, Splitting, **FINE, **fixed) for name, fixed in SPLITTINGS.items()),
    _case("splitting-accelerated", Splitting, **FINE, beta=1.5, gamma=0.7, weighted=True, cap=8, memory=1),
    *(
        _case(f"{name}-accelerated", Splitting, **FINE, **fixed, memory=1, safeguard=True)
        for name, fixed in SPLITTINGS.items()
        if name in ("fedsplit", "fedpi", "fedrp")
    ),
    _case("sketch", SketchedSGD, clip=10.0, rows=3, columns=4, k=1, p2=2),
    _case("quantised", Quantised, reach=2.0),
    _case("quantised-buckets", Quantised, reach=1.0, levels=3, bucket=4, feedback=True, weighted=True, cap=8),
    _case("evaluation", Evaluation, measures=EvaluationMetrics(loss_bound=8.0, bins=4), rounding=False),
    _case(
        "evaluation-private",
        Evaluation,
        measures=EvaluationMetrics(
            loss_bound=8.0, bins=4, privacy=HistogramBudget(promise=PROMISE, goal=Goal(rho=333.0), rounds=60)
        ),
        rounding=False,
        same_bits=False,
    ),
    _evaluated(Ditto, EvaluationMetrics(loss_bound=8.0, bins=0, personal=True), clip=10.0),
)


# --- runs that can be compared ---


@dataclass(frozen=True)
class Happened:
    """All that a run leaves, as bytes and text: equal if and only if every bit is."""

    states: tuple[bytes, ...]
    memories: tuple[Mapping[int, bytes], ...]
    reports: tuple[tuple[object, ...], ...]

    @property
    def failures(self) -> list[bool]:
        return [report[-1] is not None for report in self.reports]

    def rounds(self) -> list[tuple[bytes, Mapping[int, bytes], tuple[object, ...]]]:
        return list(zip(self.states, self.memories, self.reports, strict=True))


def start_of(algorithm: AnyAlgorithm) -> Any:
    return algorithm.start(as_vector(np.zeros(algorithm.dim)))


def described(report: RoundReport) -> tuple[object, ...]:
    """A report as values that can be compared; its failure by class and words."""
    failure = None if report.failure is None else (type(report.failure), str(report.failure))
    return report.number, dict(report.sums), report.clients, dict(report.facts), failure


def memories_of(channel: SessionChannel) -> dict[int, bytes]:
    return {member: pack(each.memory) for member, each in channel.participants.items()}


def setting(
    algorithm: AnyAlgorithm,
    trust: Trust,
    *,
    dropouts: DropoutSchedule = no_dropouts,
    sessions: int = 3,
    **more: Any,
) -> Setting:
    """Two of five may be missing. A session has sums for `sessions` rounds."""
    sums = max(1, min(64, algorithm.most_sums * sessions))
    usual: dict[str, Any] = {"insecure_seed": SEED, "dropout": 0.4, "sums": sums}
    return Setting(trust=trust, dropouts=dropouts, **usual | more)


def channel_of(
    case: Case,
    make: MakeChannel,
    trust: Trust,
    *,
    learners: Mapping[int, Learner] | None = None,
    clients: int = CLIENTS,
    **more: Any,
) -> SessionChannel:
    algorithm = case.algorithm()
    members = case.learners(DIM, clients) if learners is None else learners
    return make(algorithm, members, setting(algorithm, trust, **more))


def run_of(case: Case, channel: Any) -> Run[Any]:
    """A server with an instance of its own: what its clients' instance may keep is not within its reach."""
    algorithm = case.algorithm()
    return Run(algorithm, channel, start_of(algorithm))


def play(case: Case, make: MakeChannel, trust: Trust, *, rounds: int = 3, **more: Any) -> Happened:
    channel = channel_of(case, make, trust, **more)
    return rounds_of(run_of(case, channel), channel, rounds)


def rounds_of(run: Run[Any], channel: SessionChannel, rounds: int) -> Happened:
    states, memories, reports = [], [], []
    for _ in range(rounds):
        reports.append(described(run.round()))
        states.append(pack(run.state))
        memories.append(memories_of(channel))
    return Happened(tuple(states), tuple(memories), tuple(reports))


# --- channels that watch ---


class Watching:
    """A channel that notes what passes through it, and may put something else in its place."""

    def __init__(self, channel: SessionChannel, canned: list[Total] | None = None) -> None:
        self.channel = channel
        self.asked: list[tuple[int, Query, Total]] = []
        self.is_servers_turn = False  # whether the algorithm's server side is being run
        self._canned = canned
        self._number = 0

    def begin(self, round_info: RoundInfo) -> None:
        self.is_servers_turn = False
        self._number = round_info.number
        self.channel.begin(round_info)
        self.is_servers_turn = True

    def ask(self, query: Query) -> Total:
        self.is_servers_turn = False
        total = self.channel.ask(query)
        if self._canned is not None:
            total = self._canned[len(self.asked)]
        self.asked.append((self._number, query, total))
        self.is_servers_turn = True
        return total

    def finish(self, round_info: RoundInfo) -> None:
        self.is_servers_turn = False
        self.channel.finish(round_info)


class ExactSums:
    """A channel that adds answers exactly, so that their order cannot matter, not even to the last bit."""

    def __init__(self, algorithm: AnyAlgorithm, learners: Mapping[int, Learner]) -> None:
        # One session for all: participants are the channel's, sums are its own.
        self._inner = insecure_plain_sum(algorithm, learners, setting(algorithm, Trust.CURIOUS))
        assert algorithm.table is not None
        self._table = algorithm.table
        self.participants = self._inner.participants
        self._round_info = RoundInfo()

    def begin(self, round_info: RoundInfo) -> None:
        self._round_info = round_info

    def ask(self, query: Query) -> Total:
        answers = []
        for participant in self.participants.values():
            values = participant.answer(
                query.kind,
                encode_query(self._round_info, query),
                round_number=self._round_info.number,
                invited=CLIENTS,
            )
            assert values is not None
            answers.append({name: np.asarray(each) for name, each in values.items()})
            participant.confirmed()
        parts: dict[str, Any] = {}
        for part in self._table[query.kind].parts:
            rows = [answer[part.name] for answer in answers]
            if part.counts:
                parts[part.name] = np.sum(rows, axis=0).astype(np.uint64)
            else:
                parts[part.name] = np.array([fsum(column) for column in zip(*rows, strict=True)])
        return Total(parts, count=len(answers), invited=len(answers))

    def finish(self, round_info: RoundInfo) -> None:
        for participant in self.participants.values():
            participant.apply_history(round_info)


class Guarded:
    """A learner that fails when anybody touches it while the server's side runs."""

    def __init__(self, learner: Learner, is_servers_turn: Callable[[], bool]) -> None:
        self._learner = learner
        self._is_servers_turn = is_servers_turn
        self.touched = 0

    def __getattr__(self, name: str) -> Any:
        assert not self._is_servers_turn(), f"the server's side reached a learner's {name}"
        self.touched += 1
        return getattr(self._learner, name)


class Batches(QuadraticLearner):
    """A learner whose gradients depend on how often it was asked, as those of batches do."""

    calls: int = 0

    def gradient(self, model: Vector) -> Vector:
        self.calls += 1
        return super().gradient(model) + 0.01 * np.sin(self.calls + np.arange(len(model)))


def in_batches(dim: int, clients: int) -> dict[int, Learner]:
    return {
        member: Batches(each.centre, each.curvature, each.samples, each.rate, each.steps)  # type: ignore[attr-defined]
        for member, each in quadratics(dim, clients).items()
    }


def absent(members: tuple[int, ...], stage: Any, *, sum_index: int, round_number: int = 1) -> DropoutSchedule:
    """Those members miss that stage of that sum of that round."""

    def dropouts(member: int, at: Any, number: int, index: int) -> bool:
        return member in members and at is stage and number == round_number and index == sum_index

    return dropouts
