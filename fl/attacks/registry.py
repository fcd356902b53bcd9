"""Registry of attacks, and functions that apply them: to data before training, to learners, or to both.

    flip = attack("label-flip", rule="characters")
    who = by_samples(federation.samples, 0.25, seed)
    federation = corrupt_data(federation, flip, who, rng)
    learners = corrupt_learners(learners, flip, who, seed)

Both calls accept every attack, and change only what it affects. With `answers`, attacks on updates corrupt
the clients' answers instead: see `fl.attacks.updates`. `register` adds an attack.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, Final, TypeAlias

import numpy as np

from fl.attacks import poisoning
from fl.attacks.learner_wrapper import WrappedLearners, generator
from fl.attacks.omniscient import Omniscient
from fl.attacks.updates import (
    NORM,
    SPREAD,
    CorruptAnswer,
    CorruptUpdate,
    Gaussian,
    SameValue,
    Scaling,
    SignFlip,
)
from fl.checks import unknown_name
from fl.errors import TrainingError
from fl.federation import Federation
from fl.samples import Samples

# Maps a client's training data and the number of classes to the poisoned data.
Poison: TypeAlias = Callable[[Samples, int | None, np.random.Generator], Samples]
# Maps (learner, client, corrupt clients, seed) to the learner that the algorithm uses instead.
Wrap: TypeAlias = Callable[[Any, int, frozenset[int], int], Any]


@dataclass(frozen=True)
class Attack:
    """Functions that change corrupt clients' data and learners. With `all_clients`, the learners of all
    clients are wrapped, if at least one client is corrupt."""

    poison: Poison | None = None
    wrap: Wrap | None = None
    all_clients: bool = False


def attack(name: str, **parameters: Any) -> Attack:
    """Return the attack called `name`, made with `parameters`."""
    if name not in ATTACKS:
        raise unknown_name("attack", name, ATTACKS, parameter="kind")
    try:
        return ATTACKS[name](**parameters)
    except TypeError as error:
        raise TrainingError(f"the attack {name!r} does not accept these parameters: {error}") from None


def corrupt_data(
    federation: Federation, attack: Attack | str, who: Collection[int], rng: np.random.Generator
) -> Federation:
    """Return the federation in which clients in `who` train on poisoned data. Validation and test data stay
    unchanged."""
    _check_who(who, federation.clients)
    poison = _named(attack).poison
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
    """Return the learners, with those of clients in `who` corrupted. They train together as `learners` do.

    `answers`  whether clients train honestly and their answers are corrupted instead. Raise `TrainingError`
               for an attack that does not corrupt updates.
    """
    _check_who(who, learners)
    chosen, corrupt = _named(attack), frozenset(who)

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


def is_on_messages(chosen: Attack | str) -> bool:
    """Return whether the attack transforms single messages, which can be updates or answers."""
    found = _named(chosen)
    return found.wrap is not None and not found.all_clients


def _named(chosen: Attack | str) -> Attack:
    return attack(chosen) if isinstance(chosen, str) else chosen


def _check_who(who: Collection[int], clients: Collection[int]) -> None:
    if unknown := set(who) - set(clients):
        raise TrainingError(
            f"clients {sorted(unknown)} cannot be corrupt: there are no clients with these ids"
        )


# --- choice of the corrupt clients ---


def by_samples(sizes: Mapping[int, int], level: float, seed: int) -> frozenset[int]:
    """Return random clients that together hold more than the part `level` of all training samples.

    Clients are added in random order until this is reached, as in "Robust Aggregation for Federated
    Learning", where `level` is called corruption. At level 0 no client is corrupt. `sizes` has the number of
    training samples of each client, as `Federation.samples`.
    """
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
    """Return a random `fraction` of the clients `ids`, rounded to a whole number, as in the lp-proj paper."""
    if not 0 <= fraction <= 1:
        raise TrainingError(f"the fraction of clients must be from 0 to 1, not {fraction!r}")
    clients = sorted(ids)
    chosen = np.random.default_rng(seed).choice(clients, round(fraction * len(clients)), replace=False)
    return frozenset(map(int, chosen))


# --- the attacks ----------------------------------------------------------------------------------------


def _label_flip(*, rule: str = poisoning.REVERSE) -> Attack:
    return Attack(poison=lambda samples, classes, _rng: poisoning.flip_labels(samples, classes, rule=rule))


def _image_negation() -> Attack:
    return Attack(poison=lambda samples, _classes, _rng: poisoning.negate_images(samples))


def _text_reversal() -> Attack:
    return Attack(poison=lambda samples, _classes, _rng: poisoning.reverse_text(samples))


def _poisoning_with_scaling(*, deviation: float = 20.0, whole: bool = False) -> Attack:
    scaling = _update(Scaling, deviation=deviation, whole=whole)
    return Attack(poison=poisoning.random_labels, wrap=scaling.wrap)


def _omniscient(*, weighted: bool = True) -> Attack:
    def wrap(learner: Any, client: int, who: frozenset[int], _seed: int) -> Omniscient:
        return Omniscient(learner, client, who, weighted=weighted)

    return Attack(wrap=wrap, all_clients=True)


def _update(kind: type[CorruptUpdate], **parameters: Any) -> Attack:
    signature(kind).bind(None, None, **parameters)  # fail here instead of once per client

    def wrap(learner: Any, client: int, _who: frozenset[int], seed: int) -> CorruptUpdate:
        return kind(learner, generator(kind.__name__, seed, client), **parameters)

    return Attack(wrap=wrap)


ATTACKS: Final[dict[str, Callable[..., Attack]]] = {
    "label-flip": _label_flip,
    "image-negation": _image_negation,
    "text-reversal": _text_reversal,
    "random-labels": lambda: Attack(poison=poisoning.random_labels),
    "poisoning-with-scaling": _poisoning_with_scaling,
    "same-value": partial(_update, SameValue),
    "sign-flip": partial(_update, SignFlip),
    "gaussian": partial(_update, Gaussian),
    "gaussian-spread": partial(_update, Gaussian, like=SPREAD),
    "gaussian-norm": partial(_update, Gaussian, like=NORM),
    "scaling": partial(_update, Scaling),
    "omniscient": _omniscient,
}


def register(name: str, make: Callable[..., Attack]) -> None:
    """Add an attack on data or updates. Raise `TrainingError` if the name is taken."""
    if name in ATTACKS:
        raise TrainingError(f"there is an attack {name!r} already: choose another name", parameter="name")
    ATTACKS[name] = make
