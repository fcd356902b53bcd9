"""Choose the corrupt clients of an attack, and corrupt their data and learners.

    flip = attack("label-flip", rule="characters")
    who = by_samples(federation.samples, 0.25, seed)
    federation = corrupt_data(federation, flip, who, rng)
    learners = corrupt_learners(learners, flip, who, seed)

`corrupt_data` and `corrupt_learners` accept every attack, and change nothing that the attack does not affect.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fl.attacks.registry import Attack, is_on_messages, named
from fl.attacks.updates_and_answers import CorruptAnswer
from fl.errors import TrainingError
from fl.federation import Federation
from fl.learner_wrapper import WrappedLearners


def by_samples(sizes: Mapping[int, int], level: float, seed: int) -> frozenset[int]:
    """Return the ids of random clients that in total hold more than the fraction `level` of all training
    samples. Clients are added in random order until they do, as in "Robust Aggregation for Federated
    Learning", where `level` is called corruption. At level 0, no client is returned. `sizes` has the number
    of training samples by client id. Raise `TrainingError` unless `level` is from 0 to below 1."""
    if not 0 <= level < 1:
        raise TrainingError(f"the corrupt share of all samples must be from 0 to below 1, not {level!r}")
    order, total = list(sizes), sum(sizes.values())
    random.Random(seed - 1).shuffle(order)
    chosen: set[int] = set()
    held = 0
    for client in order if level else ():
        if held > level * total:
            break
        chosen.add(client)
        held += sizes[client]
    return frozenset(chosen)


def by_count(ids: Iterable[int], fraction: float, seed: int) -> frozenset[int]:
    """Return a random `fraction` (0 to 1) of the client `ids`, rounded to a whole number of clients."""
    if not 0 <= fraction <= 1:
        raise TrainingError(f"the fraction of clients must be from 0 to 1, not {fraction!r}")
    clients = sorted(ids)
    chosen = np.random.default_rng(seed).choice(clients, round(fraction * len(clients)), replace=False)
    return frozenset(map(int, chosen))


def corrupt_data(
    federation: Federation, attack: Attack | str, who: Collection[int], rng: np.random.Generator
) -> Federation:
    """Return the federation with the training data of the clients in `who` poisoned by `attack`. Other data,
    and the argument itself, stay unchanged. Ids in `who` that are not clients raise `TrainingError`."""
    _check_who(who, federation.clients)
    poison = named(attack).poison
    if poison is None:
        return federation
    clients = {
        client: replace(data, train=poison(data.train, federation.classes, rng)) if client in who else data
        for client, data in federation.clients.items()
    }
    return replace(federation, clients=clients)


def corrupt_learners(
    learners: Mapping[int, Any],
    attack: Attack | str,
    who: Collection[int],
    seed: int,
    *,
    answers: bool = False,
) -> WrappedLearners:
    """Return the learners by client id. Those of the clients in `who` are wrapped to carry out `attack`; if
    the attack sets `all_clients` and `who` is not empty, all are wrapped. If `answers`, clients train
    honestly, and what they send to the server is corrupted instead (see `CorruptAnswer`). `TrainingError` is
    raised for unknown ids, and, if `answers`, for an attack that does not corrupt updates."""
    _check_who(who, learners)
    chosen, corrupt = named(attack), frozenset(who)

    def change(client: int, learner: Any) -> Any:
        if chosen.wrap is None or not (client in corrupt or (corrupt and chosen.all_clients)):
            return learner
        made = chosen.wrap(learner, client, corrupt, seed)
        return CorruptAnswer(made) if answers else made

    if answers and not is_on_messages(chosen):
        raise TrainingError(
            "only an attack on messages can corrupt answers: choose one that corrupts updates"
        )
    return WrappedLearners.of(learners, change)


def _check_who(who: Collection[int], clients: Collection[int]) -> None:
    if unknown := set(who) - set(clients):
        raise TrainingError(
            f"clients {sorted(unknown)} cannot be corrupt: there are no clients with these ids"
        )
