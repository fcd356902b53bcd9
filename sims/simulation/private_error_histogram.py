"""A differentially private histogram of the error rates of clients, computed over a separate channel. It is a
sum with noise, which hides the error of a single client. It takes its part of the clients' privacy budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from protocols.algorithm import AnyAlgorithm, ModelState
from protocols.evaluation import ERRORS, ErrorHistogram, Evaluation, EvaluationMetrics
from protocols.rounds import Query, RoundInfo
from protocols.run import Run
from protocols.serialisation import Vector, as_vector
from secagg.client_budget import Budget, Spend, sum_charge
from secagg.errors import BudgetExceeded, ParameterError
from secagg.noise.zcdp_cost import Adjacency, charge
from secagg.sum_spec import Total
from sims.runtime import ObservedChannel
from sims.scenario.error_histogram import tail_measures, tail_rounds
from sims.scenario.settings import Settings, TailSection

_DIGITS: Final = 6


@dataclass(eq=False)
class PeriodicErrorHistogram:
    """Requests a private histogram of clients' error rates after the rounds that a scenario selects."""

    section: TailSection
    rounds: int
    algorithm: AnyAlgorithm
    channel: ObservedChannel
    run: Run[Any]
    seen: _RecordingChannel

    @classmethod
    def of(
        cls, settings: Settings, algorithm: AnyAlgorithm, channel: ObservedChannel
    ) -> PeriodicErrorHistogram:
        """Return a requester of histograms over `channel` with the algorithm of `histogram_algorithm`."""
        section = settings.tail
        assert section is not None  # there is an algorithm
        seen, start = _RecordingChannel(channel), ModelState(as_vector([0.0] * algorithm.dim))
        return cls(section, settings.rounds, algorithm, channel, Run(algorithm, seen, start), seen)

    def is_due(self, number: int) -> bool:
        """Return whether a histogram is due after round `number`, counted from 1."""
        return number in tail_rounds(self.section, self.rounds)

    def affordable(self, spent: Spend) -> bool:
        """Return whether one more histogram costs no more than the part of the budget that histograms have,
        of which sums that came to nothing may have used some. Clients only know the whole budget, so a
        server that asked for more would use up that of the training."""
        table, limit = self.algorithm.table, self.algorithm.max_rho
        assert table is not None  # it has a histogram
        assert limit is not None  # with noise
        cost = sum_charge(
            table[ErrorHistogram.kind], roster=self.algorithm.clients, adjacency=Adjacency.ZERO_OUT
        )
        try:
            Budget(charge=charge(limit)).check(spent, cost)
        except BudgetExceeded:
            return False
        return True

    def left_out(self) -> dict[str, Any]:
        """Return the outcome, in the form of `ask`, of a histogram that is not affordable."""
        failure = "the part of the privacy budget that histograms have is spent"
        return {
            "completed": False, "failure": failure, "clients": 0, "bins": self.section.bins, "heights": None,
        }  # fmt: skip

    def ask(self, model: Vector) -> dict[str, Any]:
        """Request a histogram of the clients' error rates with `model`, and return the outcome as JSON
        values. If it failed, "failure" says why. Bin heights include noise: some may be negative."""
        self.run.state = ModelState(as_vector(model))
        self.seen.heights = None
        report = self.run.round()
        failure = None if report.failure is None else str(report.failure)
        return {
            "completed": report.completed,
            "failure": failure,
            "clients": report.clients,
            "bins": self.section.bins,
            "heights": self.seen.heights,
            **report.facts,
        }

    def resume(self, saved: bytes, *, interrupted: bool) -> None:
        """Restore the state `saved`. If `interrupted`, skip a number: the next histogram may have begun."""
        self.run = Run.resume(self.algorithm, self.seen, saved, interrupted=interrupted)


def histogram_algorithm(settings: Settings, *, dim: int, clients: int) -> AnyAlgorithm | None:
    """Return the algorithm of the histograms of errors, or None without a `[tail]`. Raise `ParameterError` if
    no noise suffices."""
    section = settings.tail
    if section is None:
        return None
    return Evaluation(dim=dim, clients=clients, measures=_measures(settings, section, clients))


class _RecordingChannel:
    """A channel that keeps the bin heights of the last histogram, which its algorithm does not report."""

    def __init__(self, channel: ObservedChannel) -> None:
        self._channel = channel
        self.heights: list[float] | None = None

    def begin(self, round_info: RoundInfo) -> None:
        self._channel.begin(round_info)

    def ask(self, query: Query) -> Total:
        total = self._channel.ask(query)
        if query.kind == ErrorHistogram.kind:
            self.heights = [round(float(each), _DIGITS) for each in total[ERRORS]]
        return total

    def finish(self, round_info: RoundInfo) -> None:
        self._channel.finish(round_info)


def _measures(settings: Settings, section: TailSection, clients: int) -> EvaluationMetrics:
    try:
        return tail_measures(settings, section, clients)
    except ParameterError as error:
        raise ParameterError(f"tail: {error}", parameter="tail") from None
