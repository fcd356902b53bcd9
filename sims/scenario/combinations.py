"""What is wrong with settings that are right one by one."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from protocols.catalogue import Entry, find
from secagg.errors import ParameterError, SecaggError
from secagg.thresholds import Trust
from secagg.topology import plan
from sims.deploy.problems import Problems, nearest
from sims.scenario.settings import ChannelSection, Settings

_SOME_DIM: Final = 10
_SOME_CLIENTS: Final = 2
_MOST: Final = 1e6  # above which nothing is learnt, and a step is soon no number of 32 bits
# They take steps along gradients by themselves, where corrupt updates do not reach them.
_OWN_STEPS: Final = frozenset({"apfl", "per-fedavg", "per-fedbc"})


def check(settings: Settings, problems: Problems) -> None:
    """Add what is wrong to `problems`."""
    training = settings.training
    if training.epochs is not None and training.steps is not None:
        problems.add("training", "set either steps or epochs, not both")
    for name, value in (("rate", training.rate), ("weight_decay", training.weight_decay)):
        if value > _MOST:
            problems.add(f"training.{name}", f"must be at most {_MOST:g}, not {value:g}")
    _check_stragglers(settings, problems)
    _check_attack(settings, problems)
    _check_cohort(settings, problems)
    _check_observers(settings, problems)
    try:
        entry = find(settings.algorithm.name)
    except ParameterError as error:
        problems.add("algorithm.name", str(error))
    else:
        _check_algorithm(entry, settings, problems)


def _check_stragglers(settings: Settings, problems: Problems) -> None:
    given = settings.training
    if settings.cohort.stragglers and (given.epochs or given.steps or 1) < 2:
        problems.add(
            "cohort.stragglers",
            "nobody is late in a single epoch or step: set training.epochs or training.steps to 2 or more",
        )


def _check_attack(settings: Settings, problems: Problems) -> None:
    attack, name = settings.attack, settings.algorithm.name
    if attack is None or not attack.fraction:
        return
    clients = _training_clients(settings)
    if clients is not None and clients > 0 and attack.selection == "count":
        corrupt = round(attack.fraction * clients)
        if corrupt in (0, clients):
            who = "everybody: set it to less" if corrupt else "nobody: set it to more, or leave out [attack]"
            problems.add("attack.fraction", f"{attack.fraction} of {clients} clients is {who}")
    if attack.level == "update" and name in _OWN_STEPS and _changes_updates(attack.kind):
        problems.add(
            "attack.kind",
            f"{attack.kind} changes what a client's local training gives, but {name} takes steps of its own: "
            'poison data instead, or set level = "message"',
        )


def _changes_updates(kind: str) -> bool:
    """False for what is not known: that is told elsewhere."""
    from fl.attacks import ATTACKS

    name = kind.replace("_", "-")
    return name in ATTACKS and ATTACKS[name]().wrap is not None


def _check_cohort(settings: Settings, problems: Problems) -> None:
    partition, cohort = settings.partition, settings.cohort
    clients = _training_clients(settings)
    if clients is not None and clients < 1:
        problems.add("partition.held_out", "must be fewer than partition.clients: somebody has to train")
    elif clients is not None and cohort.per_round is not None and cohort.per_round > clients:
        problems.add("cohort.per_round", f"must be at most {clients}, the clients that train")
    invited = cohort.per_round if cohort.per_round is not None else clients
    least = settings.channel.corrupt + 2
    if invited is not None and 1 <= invited < least:
        problems.add(
            "channel.corrupt",
            f"with {settings.channel.corrupt} colluders a round needs {least} clients or more, not {invited}",
        )
    elif invited is not None and invited >= 1:
        _check_channel(settings.channel, invited, problems)
    if settings.evaluation.held_out and partition is not None and not partition.held_out:
        problems.add("evaluation.held_out", "nobody is held out: set partition.held_out, or leave this out")


def _check_channel(channel: ChannelSection, invited: int, problems: Problems) -> None:
    if why := _unplanned(invited, channel.trust, channel.corrupt, channel.dropout):
        problems.add("channel.dropout" if channel.dropout else "channel.corrupt", why)


@lru_cache
def _unplanned(clients: int, trust: str, corrupt: int, dropout: float) -> str:
    """Why so many clients cannot be protected, or nothing."""
    try:
        plan(clients, trust=Trust.parse(trust), corrupt=corrupt, dropout=dropout)
    except ParameterError as error:
        return str(error)
    return ""


def _training_clients(settings: Settings) -> int | None:
    """How many train, if that is said; the data may know."""
    partition = settings.partition
    if partition is None or partition.clients is None:
        return None
    return partition.clients - partition.held_out


def _check_observers(settings: Settings, problems: Problems) -> None:
    from sims.simulation.observers import OBSERVERS

    for name in settings.evaluation.observe:
        if name not in OBSERVERS:
            problems.add("evaluation.observe", f"{name!r} is not known; {nearest(name, sorted(OBSERVERS))}")


def _check_algorithm(entry: Entry, settings: Settings, problems: Problems) -> None:
    """Build one for a model of some size, which its parameters do not depend on."""
    from sims.simulation.algorithm import build

    clients = max(settings.cohort.per_round or _training_clients(settings) or _SOME_CLIENTS, 1)
    known = {"rate": settings.training.rate, "steps": 1, "population": clients}
    try:
        built = build(settings, dim=_SOME_DIM, clients=clients, known=known)
    except SecaggError as error:
        problems.add("algorithm", f"{entry.name}: {error}")
        return
    if built.table is None and settings.evaluation.what == "common":
        problems.add(
            "evaluation.what", f'{entry.name} sums nothing, and has no common model: set what = "personal"'
        )
