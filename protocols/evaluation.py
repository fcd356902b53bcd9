"""Evaluation of models by sums: mean accuracy and loss, and percentiles of the clients' error rates.

The server sees no single client's score. Accuracy and loss are means over all held-out samples. Percentiles
are read from a histogram of error rates to which each client adds one count, so they are exact to one bin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Final, Generic, TypeAlias, TypeVar, assert_never

import numpy as np
from numpy.typing import ArrayLike

from protocols import checks
from protocols.algorithm import Algorithm, ClientRound, ModelState, NoMemory, Sum, rho_of_round
from protocols.histogram_quantiles import one_hot, read_percentile
from protocols.learner import Learner, Score, uncounted
from protocols.privacy_budget import HistogramBudget, PrivacyBudget
from protocols.rounds import Fact, Outcome, Query, Round, Steps
from protocols.serialisation import Vector
from secagg.errors import ParameterError, SumFailed
from secagg.noise.elementwise_calibration import calibrate_counts, calibrate_elements
from secagg.sum_spec import Count, LInf, Part, SumSpec, Table, bits_for_cohort

CORRECT: Final = "correct"
TOTAL: Final = "total"
LOSS: Final = "loss"
ERRORS: Final = "errors"

Facts: TypeAlias = dict[str, Fact]


@dataclass(frozen=True)
class Scores(Query):
    """Asks for each client's score of `model`: numbers of held-out samples and of correct ones, and loss."""

    kind: ClassVar[str] = "scores"
    model: Vector


@dataclass(frozen=True)
class ErrorHistogram(Query):
    """Asks each client to add one count to the bin of `model`'s error rate on its held-out samples."""

    kind: ClassVar[str] = "errors"
    model: Vector
    bins: int


@dataclass(frozen=True, kw_only=True)
class EvaluationMetrics:
    """What an evaluation measures: accuracy and loss, in one sum, and a histogram of error rates, in another.

    `scores`       whether mean accuracy and loss are computed; if False, there is only the histogram.
    `loss_bound`   largest loss; larger losses are clipped to it. It must be set if `scores` is True.
    `cap`          largest number of held-out samples by which a client is weighted.
    `bins`         number of bins of the histogram of error rates from 0 to 1; 0 means no histogram.
    `percentiles`  which percentiles of the clients' error rates are reported, from 1 to 99.
    `personal`     whether each client evaluates its personal model instead of the common one.
    `privacy`      a budget for noise on both sums, or None. The histogram gets `privacy.ratio` of it. The
                   count of correct samples, the count of all samples and the loss share the rest equally.
    """

    scores: bool = True
    loss_bound: float | None = None
    cap: int = 1000
    bins: int = 20
    percentiles: tuple[int, ...] = (50, 90)
    personal: bool = False
    privacy: HistogramBudget | None = None

    def __post_init__(self) -> None:
        checks.truth("personal", self.personal)
        checks.truth("scores", self.scores)
        if self.scores:
            checks.bound("loss_bound", self.loss_bound, "the largest loss that is told apart, such as 5.0")
        checks.whole("cap", self.cap, 1, 1 << 32)
        checks.whole("bins", self.bins, 0, 1 << 20)
        for each in self.percentiles:
            checks.whole("a percentile", each, 1, 99)
        if not self.scores and not self.bins:
            raise ParameterError("nothing is asked for: set bins, or leave scores True")
        if self.privacy is not None and self.bins:
            self._check_ratio(self.privacy)

    def _check_ratio(self, privacy: HistogramBudget) -> None:
        if self.scores and privacy.ratio == 1:
            raise ParameterError(
                "of the budget, the histogram must leave something: set a ratio below 1", parameter="ratio"
            )
        if not self.scores and privacy.ratio < 1:
            raise ParameterError(
                "there is nothing but the histogram to spend on: set a ratio of 1", parameter="ratio"
            )

    most = checks.CheckedBound("loss_bound")

    @cached_property
    def edges(self) -> Vector:
        return np.linspace(0.0, 1.0, self.bins + 1)

    # --- sums ---

    def sums(self, clients: int) -> tuple[Sum, ...]:
        """Return its sums; raise `ParameterError` if noise is calibrated for fewer than `clients` clients."""
        if self.privacy is not None:
            self.privacy.check_clients(clients)
        found = []
        if self.scores:
            what = "how many samples there are, how many are right, and their loss"
            found.append(self._sum(Scores, self._score_parts(clients), what))
        if self.bins:
            what = "how many clients have which error"
            found.append(self._sum(ErrorHistogram, (self._histogram(clients),), what))
        return tuple(found)

    def _sum(self, query: type[Query], parts: tuple[Part, ...], reveals: str) -> Sum:
        if self.privacy is None:
            return Sum(query=query, spec=SumSpec(parts=parts), reveals=reveals, binds=False)
        spec = SumSpec(parts=parts, promise=self.privacy.promise)
        return Sum(query=query, spec=spec, reveals=f"{reveals}, with noise", binds=False)

    def _score_parts(self, clients: int) -> tuple[Part, ...]:
        if self.privacy is not None:
            return self._noisy_score_parts
        count = Count(self.cap)
        bits = bits_for_cohort(count, clients)
        return (
            Part(name=CORRECT, size=1, bits=bits, bound=count),
            Part(name=TOTAL, size=1, bits=bits, bound=count),
            Part(name=LOSS, size=1, bits=64, bound=LInf(self.most)),
        )

    @cached_property
    def _noisy_score_parts(self) -> tuple[Part, ...]:
        assert self.privacy is not None
        goal, promise = self.privacy.rest if self.bins else self.privacy.whole, self.privacy.promise
        assert goal is not None  # checked above
        third = goal.part(1 / 3)
        counts = calibrate_counts(promise=promise, goal=third, bins=1, limit=self.cap)
        loss = calibrate_elements(promise=promise, goal=third, size=1, limit=self.most)
        return (counts.part(CORRECT), counts.part(TOTAL), loss.part(LOSS))

    def _histogram(self, clients: int) -> Part:
        if self.privacy is not None:
            return self._noisy_histogram
        count = Count(1, total=1)
        return Part(name=ERRORS, size=self.bins, bits=bits_for_cohort(count, clients), bound=count)

    @cached_property
    def _noisy_histogram(self) -> Part:
        assert self.privacy is not None
        return self.privacy.histogram(self.bins).part(ERRORS)

    # --- a client's side ---

    def answer(self, query: Scores | ErrorHistogram, score: Score) -> Mapping[str, ArrayLike]:
        """Return what a client with `score` adds to the sum, by part name; zeros if it has no samples."""
        match query:
            case Scores():
                return self._scored(score)
            case ErrorHistogram():
                return {ERRORS: self._counted(score)}
        assert_never(query)

    def _scored(self, score: Score) -> Mapping[str, ArrayLike]:
        total = min(score.total, self.cap)
        correct = score.correct if total == score.total else round(score.correct * total / score.total)
        # A loss that is not finite counts as the largest. Leaving out diverged models would improve the mean.
        loss = min(max(score.loss, 0.0), self.most) if np.isfinite(score.loss) else self.most
        return {CORRECT: [correct], TOTAL: [total], LOSS: [loss * total / self.cap]}

    def _counted(self, score: Score) -> ArrayLike:
        if score.total == 0:
            return np.zeros(self.bins, np.uint64)
        return one_hot((score.total - score.correct) / score.total, self.edges)

    # --- the server's side ---

    def steps(self, model: Vector) -> tuple[Steps[Facts], ...]:
        """Return a generator for each sum, which yields the sum's query and returns metrics by name."""
        scores = (self._read_scores(model),) if self.scores else ()
        return (*scores, self._read_errors(model)) if self.bins else scores

    def _read_scores(self, model: Vector) -> Steps[Facts]:
        total = yield Scores(model)
        samples = float(total[TOTAL][0])
        if samples <= 0:
            return {"evaluation": "there are no held-out samples to speak of"}
        accuracy = float(np.clip(float(total[CORRECT][0]) / samples, 0.0, 1.0))
        loss = float(np.clip(float(total[LOSS][0]) * self.cap / samples, 0.0, self.most))
        return {"accuracy": accuracy, "loss": loss}

    def _read_errors(self, model: Vector) -> Steps[Facts]:
        total = yield ErrorHistogram(model, self.bins)
        heights = np.asarray(total[ERRORS], np.float64)
        try:
            found = {f"error_p{p}": read_percentile(heights, self.edges, p / 100) for p in self.percentiles}
        except ValueError:
            return {"errors": "the histogram holds too little to read"}
        middles = (self.edges[1:] + self.edges[:-1]) / 2
        mean = float(np.clip(middles @ heights / heights.sum(), 0.0, 1.0))
        return {"error_mean": mean, **found}


S = TypeVar("S")
M = TypeVar("M")


class _ScoreCache:
    """Answers a client's evaluation queries, and keeps a model's score in case the next query needs it."""

    def __init__(self, measures: EvaluationMetrics, learner: Learner) -> None:
        self._measures = measures
        self._learner = learner
        self._known: tuple[Vector, Score] | None = None

    def answer(self, query: Scores | ErrorHistogram, model: Vector) -> Mapping[str, ArrayLike]:
        if self._known is None or not np.array_equal(self._known[0], model):
            self._known = model, self._learner.score(model)
        return self._measures.answer(query, self._known[1])


@dataclass(frozen=True, kw_only=True)
class Evaluation(Algorithm[ModelState, NoMemory]):
    """An algorithm that evaluates a model without changing it. The metrics are the round's `Outcome.facts`.
    `measures` selects them. Its `personal` must be False, because there are no personal models here."""

    measures: EvaluationMetrics

    def check(self) -> None:
        if self.measures.personal:
            raise ParameterError(
                "personal models belong to the algorithm that makes them: evaluate it with WithEvaluation",
                parameter="personal",
            )

    @property
    def privacy(self) -> PrivacyBudget | None:
        return self.measures.privacy

    def sums(self) -> tuple[Sum, ...]:
        return self.measures.sums(self.clients)

    def round(self, state: ModelState) -> Round[ModelState]:
        facts: Facts = {}
        for steps in self.measures.steps(state.model):
            facts |= yield from steps
        return Outcome(state, facts)

    def client(self, learner: Learner, memory: NoMemory) -> EvaluationClient:  # noqa: ARG002
        return EvaluationClient(self, learner)


class EvaluationClient(ClientRound[NoMemory]):
    def __init__(self, algorithm: Evaluation, learner: Learner) -> None:
        self._examined = _ScoreCache(algorithm.measures, learner)

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        assert isinstance(query, Scores | ErrorHistogram)
        return self._examined.answer(query, query.model)


@dataclass(frozen=True, kw_only=True)
class WithEvaluation(Algorithm[S, M], Generic[S, M]):
    """Runs `algorithm` and evaluates its model after every round. The results are added to `Outcome.facts`.
    If the evaluation fails, the round is still completed, and its facts contain the error. `measures` selects
    the metrics, of the common model or of each client's personal model."""

    dim: int = field(init=False)
    clients: int = field(init=False)
    algorithm: Algorithm[S, M]
    measures: EvaluationMetrics

    def __post_init__(self) -> None:
        for name in ("dim", "clients", "memory_type", "state_type", "needs_all_clients"):
            object.__setattr__(self, name, getattr(self.algorithm, name))
        super().__post_init__()

    def check(self) -> None:
        own = {each.query.kind for each in self.measures.sums(self.clients)}
        if taken := own & {each.query.kind for each in self.algorithm.sums()}:
            raise ParameterError(f"the algorithm has sums of its own named {', '.join(sorted(taken))}")
        inner = [each.spec.is_private for each in self.algorithm.sums()]
        if inner and all(inner) != (self.measures.privacy is not None):
            raise ParameterError(
                "noise protects a client only if all its sums have it: give the algorithm and the measures a "
                "budget each, or neither"
            )

    @property
    def privacy(self) -> PrivacyBudget | None:
        """The privacy budget of the evaluation's sums, or None. The sums of `algorithm` have their own."""
        return self.measures.privacy

    @cached_property
    def rho_of_noise(self) -> float:
        rho = self.algorithm.rho_of_noise
        if self.privacy is None:
            return rho
        evaluation = Table({each.query.kind: each.spec for each in self.measures.sums(self.clients)})
        return rho + self.privacy.rounds * rho_of_round(evaluation, self.clients, self.privacy)

    def sums(self) -> tuple[Sum, ...]:
        measured = (replace(each, needed=0) for each in self.measures.sums(self.clients))
        return (*self.algorithm.sums(), *measured)

    def start(self, model: Vector) -> S:
        return self.algorithm.start(model)

    def model(self, state: S) -> Vector:
        return self.algorithm.model(state)

    def with_model(self, state: S, model: Vector) -> S:
        return self.algorithm.with_model(state, model)

    def round(self, state: S) -> Round[S]:
        outcome = yield from self.algorithm.round(state)
        facts: Facts = dict(outcome.facts)
        for steps in self.measures.steps(self.model(outcome.state)):
            try:
                facts |= yield from steps
            except SumFailed as failure:
                facts["evaluation"] = f"failed: {failure}"
        return Outcome(outcome.state, facts)

    def client(self, learner: Learner, memory: M) -> WithEvaluationClient[M]:
        return WithEvaluationClient(self, learner, memory)

    def first_memory(self) -> M:
        return self.algorithm.first_memory()

    def personal(self, memory: M, model: Vector, learner: Learner) -> Vector:
        return self.algorithm.personal(memory, model, learner)


class WithEvaluationClient(ClientRound[M], Generic[M]):
    def __init__(self, algorithm: WithEvaluation[S, M], learner: Learner, memory: M) -> None:
        self._personal = algorithm.personal if algorithm.measures.personal else None
        self._learner = learner
        self._inner = algorithm.algorithm.client(learner, memory)
        self._examined = _ScoreCache(algorithm.measures, learner)
        self._before = memory
        self._takes_part = not algorithm.algorithm.sums()
        self._after: M | None = None

    def answer(self, query: Query) -> Mapping[str, ArrayLike]:
        if isinstance(query, Scores | ErrorHistogram):
            model = query.model
            if self._personal is not None:
                memory = self.memory()
                with uncounted(self._learner):  # an evaluation does not change what is trained next
                    model = self._personal(memory, model, self._learner)
            return self._examined.answer(query, model)
        self._takes_part, self._after = True, None
        return self._inner.answer(query)

    def memory(self) -> M:
        """Return the client's memory after this round of the evaluated algorithm. If the client answered only
        evaluation queries, return its memory from before the round."""
        if not self._takes_part:
            return self._before
        if self._after is None:
            self._after = self._inner.memory()
        return self._after
