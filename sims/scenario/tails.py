"""The private histogram of clients' errors that `[tail]` asks for: its budget, and whether that will do."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from protocols.private_rounds import PrivateRounds
from secagg.errors import SecaggError
from secagg.noise.goal import Goal
from secagg.noise.promise import Promise
from secagg.thresholds import dropouts_allowed
from sims.chances import dropouts_to_plan_for
from sims.deploy.problems import Problems
from sims.scenario.cohorts import invited
from sims.scenario.settings import Settings, TailSection

_AMOUNTS: Final = frozenset({"least-squares", "fedplus-regression"})


def histograms(settings: Settings, tail: TailSection) -> int:
    """How many are asked for in a whole run, all of which share the budget: the last one is at its end."""
    return math.ceil(settings.rounds / tail.every) if tail.every else 1


def budget(settings: Settings, tail: TailSection, clients: int) -> PrivateRounds:
    """What the histograms of `clients` clients may cost one of them. Raises where nothing can be planned."""
    law, channel = settings.dropout, settings.channel
    lost = dropouts_to_plan_for(clients, Fraction(str(law.training)))
    promise = Promise(
        clients=clients,
        dropouts=max(lost, dropouts_allowed(clients, channel.dropout)),
        colluders=channel.corrupt,
    )
    goal = Goal(epsilon=tail.epsilon, delta=tail.delta)
    return PrivateRounds(promise=promise, goal=goal, rounds=histograms(settings, tail), ratio=1.0)


def check(settings: Settings, problems: Problems) -> None:
    """Add what is wrong with `[tail]`, if there is one."""
    tail, clients = settings.tail, invited(settings)
    if tail is None:
        return
    if settings.data.kind in _AMOUNTS:
        problems.add("tail", f"{settings.data.kind} has no classes, so nobody errs: leave out [tail]")
    if clients is None or clients < 1:
        return
    try:
        noise = budget(settings, tail, clients).histogram(tail.bins)
    except SecaggError as error:
        problems.add("tail", str(error))
        return
    if noise.noise_norm >= clients:
        problems.add(
            "tail.epsilon",
            f"a noise of {noise.sigma_central:.3g} in each of {tail.bins} bins drowns {clients} clients: "
            "set a larger epsilon, fewer bins, or take more clients",
        )
