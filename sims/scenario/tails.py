"""Whether the private histogram of clients' errors that `[tail]` asks for will say anything."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from secagg.errors import SecaggError
from sims.deploy.problems import Problems
from sims.plan.completion_probability import dropouts_to_plan_for
from sims.scenario.cohorts import LIKELY, enough_dropout, invited
from sims.scenario.settings import Settings, TailSection

# These have amounts, and no classes.
_AMOUNTS: Final = frozenset({"least-squares", "fedplus-regression"})


def check(settings: Settings, problems: Problems) -> None:
    """Add what is wrong with `[tail]`, if there is one."""
    tail, clients = settings.tail, invited(settings)
    if tail is None:
        return
    if settings.data.kind in _AMOUNTS:
        problems.add("tail", f"{settings.data.kind} has no classes, so nobody errs: leave out [tail]")
    if clients is not None and clients >= 1:
        _check_noise(settings, tail, clients, problems)


def _check_noise(settings: Settings, tail: TailSection, clients: int, problems: Problems) -> None:
    from sims.simulation.tail import measures

    try:
        asked = measures(settings, tail, clients)
        asked.sums(clients)
        assert asked.privacy is not None
        noise = asked.privacy.histogram(tail.bins)
    except SecaggError as error:
        problems.add("tail", str(error).removeprefix("tail: "))
        return
    if noise.noise_norm >= clients:
        problems.add(
            "tail.epsilon",
            f"a noise of {noise.sigma_central:.3g} in each of {tail.bins} bins drowns {clients} clients: "
            "set a larger epsilon, fewer bins, or take more clients",
        )
    lost = Fraction(str(settings.dropout.training))
    likely = dropouts_to_plan_for(clients, lost, exceeded=LIKELY)
    if likely > noise.promise.dropouts:
        problems.add(
            "tail",
            f"its noise is planned for {noise.promise.dropouts} clients that send nothing, as "
            f"channel.dropout says, and about {likely} of {clients} do so: set channel.dropout to "
            f"{enough_dropout(clients, lost):g}",
        )
