"""Attacks by name, and how each is applied: to data before training, to learners, or to both.

    flip = attack("label-flip", rule="characters")
    who = by_samples(federation.samples, 0.25, seed)
    federation = corrupt_data(federation, flip, who, rng)
    learners = corrupt_learners(learners, flip, who, seed)

With `answers`, what corrupts updates corrupts what clients answer with instead: see `fl.attacks.updates`.
Both calls take every attack, and leave alone what it does not touch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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

# From a client's training data, and the number of classes, to what it trains on instead.
Poison: TypeAlias = Callable[[Samples, int | None, np.random.Generator], Samples]
# From (learner, client, who is corrupt, seed) to what the algorithm sees in its place.
Wrap: TypeAlias = Callable[[Any, int, frozenset[int], int], Any]


@dataclass(frozen=True)
class Attack:
    """What becomes of corrupt clients' data and learners; if `everybody`, of all clients' learners."""

    poison: Poison | None = None
    wrap: Wrap | None = None
    everybody: bool = False


def attack(name: str, **parameters: Any) -> Attack:
    """The attack of that name. `parameters` are those of its function or class."""
    if name not in ATTACKS:
        raise unknown_name("attack", name, ATTACKS, parameter="kind")
    try:
        return ATTACKS[name](**parameters)
    except TypeError as error:
        raise TrainingError(f"the attack {name!r} has other parameters: {error}") from None


def corrupt_data(
    federation: Federation, attack: Attack | str, who: Collection[int], rng: np.random.Generator
) -> Federation:
    """The federation in which clients in `who` train on poisoned data.

    What they are judged by, and what settings are chosen by, stays true.
    """
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
    """The cohort in which learners of clients in `who` are corrupt. It trains together as `learners` do.

    `answers`  whether they train honestly, and what they answer is corrupt. Raises `TrainingError` for an
               attack that corrupts no update.
    """
    _check_who(who, learners)
    chosen, corrupt = _named(attack), frozenset(who)

    def change(client: int, learner: Any) -> Any:
        if chosen.wrap is None or not (client in corrupt or (corrupt and chosen.everybody)):
            return learner
        made = chosen.wrap(learner, client, corrupt, seed)
        return CorruptAnswer(made) if answers else made

    if answers and not is_on_messages(chosen):
        raise TrainingError("only an attack that makes another message of an honest one can corrupt answers")
    return WrappedLearners.of(learners, change)


def is_on_messages(chosen: Attack | str) -> bool:
    """Whether it makes another message of an honest one, which can be an update or an answer."""
    found = _named(chosen)
    return found.wrap is not None and not found.everybody


def _named(chosen: Attack | str) -> Attack:
    return attack(chosen) if isinstance(chosen, str) else chosen


def _check_who(who: Collection[int], clients: Collection[int]) -> None:
    if unknown := set(who) - set(clients):
        raise TrainingError(f"clients {sorted(unknown)} cannot be corrupt: there are none of these ids")


# --- the attacks ----------------------------------------------------------------------------------------


def _label_flip(*, rule: str = poisoning.REVERSE) -> Attack:
    return Attack(poison=lambda samples, classes, _rng: poisoning.flip_labels(samples, classes, rule=rule))


def _image_negation() -> Attack:
    return Attack(poison=lambda samples, _classes, _rng: poisoning.negate_images(samples))


def _text_reversal() -> Attack:
    return Attack(poison=lambda samples, _classes, _rng: poisoning.reverse_text(samples))


def _random_labels() -> Attack:
    return Attack(poison=poisoning.random_labels)


def _poisoning_with_scaling(*, deviation: float = 20.0, whole: bool = False) -> Attack:
    scaling = _update(Scaling, deviation=deviation, whole=whole)
    return Attack(poison=poisoning.random_labels, wrap=scaling.wrap)


def _omniscient(*, weighted: bool = True) -> Attack:
    def wrap(learner: Any, client: int, who: frozenset[int], _seed: int) -> Omniscient:
        return Omniscient(learner, client, who, weighted=weighted)

    return Attack(wrap=wrap, everybody=True)


def _update(kind: type[CorruptUpdate], **parameters: Any) -> Attack:
    signature(kind).bind(None, None, **parameters)  # raises here what would else be raised client by client

    def wrap(learner: Any, client: int, _who: frozenset[int], seed: int) -> CorruptUpdate:
        return kind(learner, generator(kind.__name__, seed, client), **parameters)

    return Attack(wrap=wrap)


ATTACKS: Final[dict[str, Callable[..., Attack]]] = {
    "label-flip": _label_flip,
    "image-negation": _image_negation,
    "text-reversal": _text_reversal,
    "random-labels": _random_labels,
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
    """Add an attack on data or updates. Raises `TrainingError` if the name is taken."""
    if name in ATTACKS:
        raise TrainingError(f"there is an attack {name!r} already")
    ATTACKS[name] = make
