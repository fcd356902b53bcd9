"""Chooses the attackers of a simulation, and applies attacks on data."""

from __future__ import annotations

from fl.attacks import by_count, by_samples, corrupt_data
from fl.errors import DataError
from fl.federation import Federation
from sims.scenario.federated_data import stream
from sims.scenario.kind_parameters import attacks
from sims.scenario.settings import AttackSection, Settings


def corrupt(settings: Settings, clean: Federation) -> tuple[Federation, frozenset[int]]:
    """Choose the attackers. Return the data of all clients after attacks on data, and the attackers' ids.
    With a fraction of 0 there are none. Raise `DataError` if a larger one gives none, or all clients."""
    attack = settings.attack
    if attack is None or attack.fraction == 0:
        return clean, frozenset()
    if attack.selection == "samples":
        who = by_samples(clean.samples, attack.fraction, settings.seed)
    else:
        who = by_count(clean.clients, attack.fraction, settings.seed)
    _check_corrupt(attack, who, clean)
    if attack.level == "message":
        return clean, who
    registry = attacks(attack.level)
    made = registry.find(attack.kind)(**registry.arguments_or_raise(attack, attack.kind))
    return corrupt_data(clean, made, who, stream("attack", settings.seed)), who


def _check_corrupt(attack: AttackSection, who: frozenset[int], clean: Federation) -> None:
    """Raise `DataError` if none of the clients is an attacker (in `who`), or if all are."""
    if not who or len(who) == len(clean.clients):
        which = "all of them" if who else "none of them"
        raise DataError(
            f"attack.fraction: {attack.fraction} of {len(clean.clients)} clients is {which}: set it to "
            f"{'less' if who else 'more, or leave out [attack]'}"
        )
