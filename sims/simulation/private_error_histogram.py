"""A differentially private histogram of the error rates of clients, computed over a separate channel. It is a
sum with noise, which hides the error of a single client. It has a privacy budget of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from protocols.algorithm import AnyAlgorithm, ModelState
from protocols.evaluation import ERRORS, ErrorHistogram, Evaluation, EvaluationMetrics
from protocols.rounds import Query, RoundInfo
from protocols.run import Run
from protocols.serialisation import Vector, as_vector
from secagg.errors import ParameterError
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
        cls, settings: Settings, *, dim: int, clients: int, make: Callable[[AnyAlgorithm], ObservedChannel]
    ) -> PeriodicErrorHistogram | None:
        """Return a requester of histograms over the channel `make(algorithm)`, or None without a `[tail]`."""
        section = settings.tail
        if section is None:
            return None
        algorithm = Evaluation(dim=dim, clients=clients, measures=_measures(settings, section, clients))
        channel = make(algorithm)
        seen, start = _RecordingChannel(channel), ModelState(as_vector([0.0] * dim))
        return cls(section, settings.rounds, algorithm, channel, Run(algorithm, seen, start), seen)

    def is_due(self, number: int) -> bool:
        """Return whether a histogram is due after round `number`, counted from 1."""
        return number in tail_rounds(self.section, self.rounds)

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
