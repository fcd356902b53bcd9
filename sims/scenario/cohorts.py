"""What is wrong with who takes part: too few, too many colluders, or more missing than is planned for."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

from protocols.algorithm import AnyAlgorithm
from secagg.errors import ParameterError
from secagg.finder import GraphChoice
from secagg.thresholds import Trust
from secagg.topology import Plan, plan
from sims.deploy.problems import Problems
from sims.plan.completion_probability import dropouts_to_plan_for
from sims.scenario.settings import ChannelSection, Settings

LIKELY: Final = 0.5  # what happens in every other round is refused
_SELDOM: Final = 0.01  # and what happens in a hundredth of them is left to the user


def training_clients(settings: Settings) -> int | None:
    """How many train, if that is said; the data may know."""
    partition = settings.partition
    if partition is None or partition.clients is None:
        return None
    return partition.clients - partition.held_out


def invited(settings: Settings) -> int | None:
    """How many are asked in a round, if that is said."""
    per_round = settings.cohort.per_round
    return per_round if per_round is not None else training_clients(settings)


def check(settings: Settings, problems: Problems) -> None:
    """Add what is wrong with the cohort and with how it is protected."""
    clients, per_round = training_clients(settings), settings.cohort.per_round
    if clients is not None and clients < 1:
        problems.add("partition.held_out", "must be fewer than partition.clients: somebody has to train")
    elif clients is not None and per_round is not None and per_round > clients:
        problems.add("cohort.per_round", f"must be at most {clients}, the clients that train")
    if settings.evaluation.held_out and settings.partition is not None and not settings.partition.held_out:
        problems.add("evaluation.held_out", "nobody is held out: set partition.held_out, or leave this out")
    workers = settings.channel.workers
    if clients is not None and workers > max(clients, 1):
        problems.add("channel.workers", f"must be at most {clients}, one for each client, not {workers}")
    asked = invited(settings)
    if asked is not None and asked >= 1:
        _check_asked(settings, asked, problems)


def _check_asked(settings: Settings, asked: int, problems: Problems) -> None:
    channel = settings.channel
    least = channel.corrupt + 2
    if asked >= least:
        if why := _unplanned(asked, channel):
            problems.add(_blamed(channel), why)
    elif channel.corrupt:
        problems.add(
            "channel.corrupt",
            f"with {channel.corrupt} colluders a round needs {least} clients or more, not {asked}",
        )
    else:
        key = "partition.clients" if settings.cohort.per_round is None else "cohort.per_round"
        problems.add(key, f"a sum over {asked} shows what that client sent: a round needs {least} or more")


def _blamed(channel: ChannelSection) -> str:
    if channel.graph == "ring":
        return "channel.graph"
    return "channel.dropout" if channel.dropout else "channel.corrupt"


def _unplanned(asked: int, channel: ChannelSection) -> str:
    """Why so many clients cannot be protected, or nothing."""
    found = _planned(asked, channel.trust, channel.corrupt, channel.dropout, channel.graph)
    return found if isinstance(found, str) else ""


@lru_cache
def _planned(clients: int, trust: str, corrupt: int, dropout: float, graph: str) -> Plan | str:
    try:
        return plan(
            clients, trust=Trust.parse(trust), corrupt=corrupt, dropout=dropout, graph=GraphChoice(graph)
        )
    except ParameterError as error:
        return str(error)


# --- who goes missing ---


def check_dropouts(settings: Settings, algorithm: AnyAlgorithm, problems: Problems) -> None:
    """Add where `[dropout]` takes more, in most rounds, than a session or its noise is planned for."""
    asked, law, channel = invited(settings), settings.dropout, settings.channel
    if asked is None or not law.happens:
        return
    later = _later_sums(algorithm)
    silent = 1 - _decimal(1 - law.training) * _decimal(1 - law.between) ** later
    gone = 1 - (1 - silent) * _decimal(1 - law.reveal)
    planned = _planned(asked, channel.trust, channel.corrupt, channel.dropout, channel.graph)
    likely = dropouts_to_plan_for(asked, gone, exceeded=LIKELY)
    if isinstance(planned, Plan) and likely > planned.spare:
        problems.add(
            "dropout",
            f"about {likely} of {asked} clients go missing in a round, and with channel.dropout = "
            f"{channel.dropout:g} it stands {planned.spare}: {_remedy(asked, gone, channel)}",
        )
    _check_noise(settings, asked, silent, problems)


def _later_sums(algorithm: AnyAlgorithm) -> int:
    """Sums of a round that are in no group with an earlier one."""
    specs = () if algorithm.table is None else tuple(algorithm.table.values())
    groups = {spec.group for spec in specs if spec.group is not None}
    return max(len(groups) + sum(spec.times for spec in specs if spec.group is None) - 1, 0)


def enough_dropout(asked: int, gone: Fraction) -> float:
    """What channel.dropout has to be, so that more are gone in hardly any round."""
    return math.ceil(100 * dropouts_to_plan_for(asked, gone, exceeded=_SELDOM) / asked) / 100


def _remedy(asked: int, gone: Fraction, channel: ChannelSection) -> str:
    enough = enough_dropout(asked, gone)
    if enough < 1 and not _unplanned(asked, channel.model_copy(update={"dropout": enough})):
        return f"set channel.dropout to {enough:g}, or let fewer go"
    return "let fewer go, as no session stands that many"


def _check_noise(settings: Settings, asked: int, silent: Fraction, problems: Problems) -> None:
    privacy = settings.privacy
    likely = dropouts_to_plan_for(asked, silent, exceeded=LIKELY)
    if privacy is not None and likely > privacy.dropouts:
        enough = dropouts_to_plan_for(asked, silent, exceeded=_SELDOM)
        problems.add(
            "privacy.dropouts",
            f"noise is planned for {privacy.dropouts} clients that send nothing, and about {likely} of "
            f"{asked} do so in a round, which then releases nothing: set it to {enough}",
        )


def _decimal(value: float) -> Fraction:
    return Fraction(str(round(value, 12)))
