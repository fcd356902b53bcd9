"""Makes and checks the private histogram of clients' errors that `[tail]` in a scenario describes."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from protocols.evaluation import EvaluationMetrics
from protocols.privacy_budget import HistogramBudget
from secagg.distributed_noise import NoiseAssumptions
from secagg.errors import SecaggError
from secagg.trust_levels import dropouts_allowed
from sims.config_problems import Problems
from sims.plan.completion_probability import dropouts_to_plan_for
from sims.scenario.cohort_checks import LIKELY, enough_dropout, invited
from sims.scenario.privacy_shares import tail_goal
from sims.scenario.settings import Settings, TailSection

# Data sets for regression have no classes, and so no classification errors.
_REGRESSION: Final = frozenset({"least-squares", "fedplus-regression"})


def tail_measures(settings: Settings, section: TailSection, clients: int) -> EvaluationMetrics:
    """Return what `[tail]` measures, a noisy error histogram. Raise `ParameterError` if no noise suffices."""
    promise = NoiseAssumptions(
        clients=clients,
        dropouts=dropouts_allowed(clients, settings.channel.dropout),
        colluders=settings.channel.corrupt,
    )
    privacy = HistogramBudget(
        promise=promise,
        goal=tail_goal(section),
        rounds=len(tail_rounds(section, settings.rounds)),
        ratio=1.0,
    )
    return EvaluationMetrics(scores=False, bins=section.bins, privacy=privacy)


def tail_rounds(section: TailSection, rounds: int) -> set[int]:
    """Return the numbers, from 1, of rounds that end with an error histogram; the last is always included."""
    regular = set(range(section.every, rounds + 1, section.every)) if section.every else set()
    return regular | {rounds}


def check_tail(settings: Settings, problems: Problems) -> None:
    """Add the problems of `[tail]`, the private histogram of errors, if the settings have one."""
    tail, clients = settings.tail, invited(settings)
    if tail is None:
        return
    if settings.data.kind in _REGRESSION:
        problems.add("tail", f"{settings.data.kind} has no classes, and so no errors to count: remove [tail]")
    if clients is not None and clients >= 1:
        _check_tail_noise(settings, tail, clients, problems)


def _check_tail_noise(settings: Settings, tail: TailSection, clients: int, problems: Problems) -> None:
    try:
        measures = tail_measures(settings, tail, clients)
        measures.sums(clients)
        assert measures.privacy is not None
        noise = measures.privacy.histogram(tail.bins)
    except SecaggError as error:
        problems.add("tail", str(error))
        return
    if noise.noise_norm >= clients:
        problems.add(
            "tail.epsilon",
            f"a noise of {noise.sigma_central:.3g} in each of {tail.bins} bins hides all {clients} clients: "
            "set a larger epsilon, fewer bins, or more clients",
        )
    lost = Fraction(str(settings.dropout.training))
    likely = dropouts_to_plan_for(clients, lost, exceeded=LIKELY)
    if likely > noise.promise.dropouts:
        problems.add(
            "tail",
            f"its noise is planned for {noise.promise.dropouts} clients that send nothing, as "
            f"channel.dropout says, but about {likely} of {clients} do so: set channel.dropout to "
            f"{enough_dropout(clients, lost):g}",
        )
