"""Divides the privacy budget of a client between the training and the histograms of errors of [tail]."""

from __future__ import annotations

from secagg.errors import ParameterError
from secagg.noise.privacy_goal import Goal
from sims.scenario.settings import PrivacySection, Settings, TailSection


def whole_goal(section: PrivacySection) -> Goal:
    """Return the goal of all sums of a run together. Raise `ParameterError` if it is invalid."""
    return Goal(rho=section.rho, epsilon=section.epsilon, delta=section.delta)


def tail_goal(section: TailSection) -> Goal:
    """Return the goal of all histograms of errors. Raise `ParameterError` if it is invalid."""
    return Goal(epsilon=section.epsilon, delta=section.delta)


def training_goal(settings: Settings, section: PrivacySection) -> Goal:
    """Return the goal of the training: `section` is the budget of a client for all sums of the run, and the
    histograms of errors take their part of it. Raise `ParameterError` if that leaves nothing."""
    whole = whole_goal(section)
    if settings.tail is None:
        return whole
    tail = tail_goal(settings.tail).rho_per_sum
    left = whole.rho_per_sum - tail
    if left <= 0:
        name = "rho" if section.rho is not None else "epsilon"
        raise ParameterError(
            f"it is the budget of a client for all sums, a rho of {whole.rho_per_sum:.4g}, of which the "
            f"histograms of [tail] take {tail:.4g}, so that nothing is left for the training: set a larger "
            f"privacy.{name}, or a smaller tail.epsilon"
        )
    return Goal(rho=left, delta=section.delta)
