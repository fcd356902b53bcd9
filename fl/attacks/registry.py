"""Registry of attacks on the data or learners of corrupt clients: `attack` returns one by name, `register`
adds one. `fl.attacks.corrupt_clients` applies attacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, Final, TypeAlias

import numpy as np

from fl.attacks import data_poisoning
from fl.attacks.omniscient import Omniscient
from fl.attacks.updates_and_answers import NORM, SPREAD, CorruptUpdate, Gaussian, SameValue, Scaling, SignFlip
from fl.checks import unknown_name
from fl.errors import TrainingError
from fl.learner_wrapper import generator
from fl.samples import Samples

# Maps (training data of a client, number of classes, random generator) to the poisoned data.
Poison: TypeAlias = Callable[[Samples, int | None, np.random.Generator], Samples]
# Maps (learner, client, corrupt clients, seed) to the learner that the algorithm uses instead.
Wrap: TypeAlias = Callable[[Any, int, frozenset[int], int], Any]


@dataclass(frozen=True)
class Attack:
    """An attack: `poison` changes a corrupt client's data, `wrap` its learner; either may be None. With
    `all_clients`, the learners of all clients are wrapped if at least one client is corrupt."""

    poison: Poison | None = None
    wrap: Wrap | None = None
    all_clients: bool = False


def attack(name: str, **parameters: Any) -> Attack:
    """Return the attack called `name`. An unknown name, or a wrong parameter, raises `TrainingError`."""
    if name not in ATTACKS:
        raise unknown_name("attack", name, ATTACKS, parameter="kind")
    try:
        return ATTACKS[name](**parameters)
    except TypeError as error:
        raise TrainingError(f"the attack {name!r} does not accept these parameters: {error}") from None


def is_on_messages(chosen: Attack | str) -> bool:
    """Return whether the attack corrupts what corrupt clients send, without using other clients' updates."""
    found = named(chosen)
    return found.wrap is not None and not found.all_clients


def named(chosen: Attack | str) -> Attack:
    """Return `chosen`, or the attack with this name and default parameters (see `attack` for errors)."""
    return attack(chosen) if isinstance(chosen, str) else chosen


# --- the attacks ----------------------------------------------------------------------------------------


def _label_flip(*, rule: str = data_poisoning.REVERSE) -> Attack:
    return Attack(
        poison=lambda samples, classes, _rng: data_poisoning.flip_labels(samples, classes, rule=rule)
    )


def _image_negation() -> Attack:
    return Attack(poison=lambda samples, _classes, _rng: data_poisoning.negate_images(samples))


def _text_reversal() -> Attack:
    return Attack(poison=lambda samples, _classes, _rng: data_poisoning.reverse_text(samples))


def _poisoning_with_scaling(*, deviation: float = 20.0, whole: bool = False) -> Attack:
    scaling = _update(Scaling, deviation=deviation, whole=whole)
    return Attack(poison=data_poisoning.random_labels, wrap=scaling.wrap)


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
    "random-labels": lambda: Attack(poison=data_poisoning.random_labels),
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
    """Add an attack: `make` returns it, given its parameters. Raise `TrainingError` if the name is taken."""
    if name in ATTACKS:
        raise TrainingError(f"there is an attack {name!r} already: choose another name", parameter="name")
    ATTACKS[name] = make
