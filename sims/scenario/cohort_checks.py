"""Checks if the settings of a round's cohort fit together: its size, colluders, drop-outs and noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Final

from protocols.algorithm import AnyAlgorithm
from secagg.errors import ParameterError
from secagg.session_params import SessionParams
from secagg.topology import GraphPlan, plan
from sims.config_problems import Problems
from sims.plan.completion_probability import dropouts_to_plan_for
from sims.scenario.settings import ChannelSection, Settings

LIKELY: Final = 0.5  # a limit on drop-outs is refused if half of the rounds exceed it
_SELDOM: Final = 0.01  # the suggested limit is exceeded in one of a hundred rounds


def training_clients(settings: Settings) -> int | None:
    """Return how many clients train, or None if that depends on the data set."""
    partition = settings.partition
    if partition is None or partition.clients is None:
        return None
    return partition.clients - partition.held_out


def invited(settings: Settings) -> int | None:
    """Return how many clients a round invites, or None if that depends on the data set."""
    per_round = settings.cohort.per_round
    return per_round if per_round is not None else training_clients(settings)


def check(settings: Settings, problems: Problems) -> None:
    """Add to `problems` each setting that contradicts the number of clients."""
    clients, per_round = training_clients(settings), settings.cohort.per_round
    if clients is not None and clients < 1:
        problems.add("partition.held_out", "must be less than partition.clients: some clients must train")
    elif clients is not None and per_round is not None and per_round > clients:
        problems.add("cohort.per_round", f"must be at most {clients}, the clients that train")
    if settings.evaluation.held_out and settings.partition is not None and not settings.partition.held_out:
        problems.add("evaluation.held_out", "no client is held out: set partition.held_out, or remove this")
    _check_participations(settings, clients, problems)
    workers = settings.channel.workers
    if clients is not None and workers > max(clients, 1):
        problems.add("channel.workers", f"must be at most {clients}, one for each client, not {workers}")
    asked = invited(settings)
    if asked is not None and asked >= 1:
        _check_asked(settings, asked, problems)


def _check_participations(settings: Settings, clients: int | None, problems: Problems) -> None:
    """Add a problem if clients may take part too seldom for the rounds of the run."""
    privacy = settings.privacy
    if privacy is None:
        return
    if privacy.participations is None:
        if privacy.min_separation:
            problems.add("privacy.min_separation", "it spreads participations: set participations as well")
        return
    if clients is not None and clients > 0:
        for name, why in too_few_participations(settings, clients):
            problems.add(f"privacy.{name}", why)


def too_few_participations(settings: Settings, clients: int) -> Iterator[tuple[str, str]]:
    """Yield (key of [privacy], why it is wrong) if so many clients cannot fill all rounds."""
    privacy, per_round = settings.privacy, min(settings.cohort.per_round or clients, clients)
    assert privacy is not None  # checked by the caller
    often = privacy.rounds_of_client(settings.rounds)
    if settings.rounds * per_round > clients * often:
        enough = -(-settings.rounds * per_round // clients)
        yield (
            "participations",
            f"{settings.rounds} rounds of {per_round} clients need {settings.rounds * per_round} "
            f"participations, but {clients} clients of {often} each have {clients * often}: set it to "
            f"{enough} or more, or have fewer rounds, fewer clients a round, or more clients",
        )
    elif settings.rounds > 1 and (privacy.min_separation + 1) * per_round > clients:
        most = clients // per_round - 1
        yield (
            "min_separation",
            f"with {per_round} of {clients} clients a round, at most {most} rounds can lie between two "
            f"participations: set it to {most} or less",
        )


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
    """Return why a session with `asked` clients and these settings cannot be secure; empty text if it can."""
    found = _planned(asked, channel.params)
    return found if isinstance(found, str) else ""


@lru_cache
def _planned(clients: int, params: SessionParams) -> GraphPlan | str:
    try:
        return plan(clients, params)
    except ParameterError as error:
        return str(error)


# --- drop-outs ---


def check_dropouts(settings: Settings, algorithm: AnyAlgorithm, problems: Problems) -> None:
    """Add a problem if half of the rounds or more have more drop-outs than session or noise tolerates."""
    asked, law, channel = invited(settings), settings.dropout, settings.channel
    if asked is None or not law.happens:
        return
    later = _later_sums(algorithm)
    silent = 1 - _decimal(1 - law.training) * _decimal(1 - law.between) ** later
    gone = 1 - (1 - silent) * _decimal(1 - law.reveal)
    planned = _planned(asked, channel.params)
    likely = dropouts_to_plan_for(asked, gone, exceeded=LIKELY)
    if isinstance(planned, GraphPlan) and likely > planned.spare:
        problems.add(
            "dropout",
            f"about {likely} of {asked} clients drop out in a round, but with channel.dropout = "
            f"{channel.dropout:g} a session tolerates {planned.spare}: {_remedy(asked, gone, channel)}",
        )
    _check_noise(settings, asked, silent, problems)


def _later_sums(algorithm: AnyAlgorithm) -> int:
    """Return how many groups of sums (over one vector) follow a round's first; a lone sum is a group, too."""
    specs = () if algorithm.table is None else tuple(algorithm.table.values())
    groups = {spec.group for spec in specs if spec.group is not None}
    return max(len(groups) + sum(spec.times for spec in specs if spec.group is None) - 1, 0)


def enough_dropout(asked: int, gone: Fraction) -> float:
    """Return a value for `channel.dropout`, a fraction of the `asked` clients, that at most 1% of rounds
    exceed if each client drops out with probability `gone`."""
    return math.ceil(100 * dropouts_to_plan_for(asked, gone, exceeded=_SELDOM) / asked) / 100


def _remedy(asked: int, gone: Fraction, channel: ChannelSection) -> str:
    enough = enough_dropout(asked, gone)
    if enough < 1 and not _unplanned(asked, channel.model_copy(update={"dropout": enough})):
        return f"set channel.dropout to {enough:g}, or lower the rates of [dropout]"
    return "lower the rates of [dropout]: no session tolerates that many"


def _check_noise(settings: Settings, asked: int, silent: Fraction, problems: Problems) -> None:
    privacy = settings.privacy
    likely = dropouts_to_plan_for(asked, silent, exceeded=LIKELY)
    if privacy is not None and likely > privacy.dropouts:
        enough = dropouts_to_plan_for(asked, silent, exceeded=_SELDOM)
        problems.add(
            "privacy.dropouts",
            f"noise is planned for {privacy.dropouts} clients that send nothing, but about {likely} of "
            f"{asked} do so in a round, which then releases nothing: set it to {enough}",
        )


def _decimal(value: float) -> Fraction:
    return Fraction(str(round(value, 12)))
