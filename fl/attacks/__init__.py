"""Attacks by corrupt clients on their data, their messages, or the secure sum; and stragglers.

`by_samples` or `by_count` choose the corrupt clients. `corrupt_data` and `corrupt_learners` apply an attack
of `ATTACKS` to them; `tampering` returns attacks on the secure sum. `slow_down` makes clients stragglers.
"""

from fl.attacks.corrupt_clients import by_count, by_samples, corrupt_data, corrupt_learners
from fl.attacks.data_poisoning import flip_labels, negate_images, random_labels, reverse_text
from fl.attacks.omniscient import Exchange, Omniscient
from fl.attacks.registry import ATTACKS, Attack, attack, is_on_messages, register
from fl.attacks.residue_tampering import TAMPERINGS, tampering
from fl.attacks.straggler import Straggler, slow_down
from fl.attacks.updates_and_answers import CorruptAnswer, Gaussian, SameValue, Scaling, SignFlip

__all__ = [
    "ATTACKS",
    "TAMPERINGS",
    "Attack",
    "CorruptAnswer",
    "Exchange",
    "Gaussian",
    "Omniscient",
    "SameValue",
    "Scaling",
    "SignFlip",
    "Straggler",
    "attack",
    "by_count",
    "by_samples",
    "corrupt_data",
    "corrupt_learners",
    "flip_labels",
    "is_on_messages",
    "negate_images",
    "random_labels",
    "register",
    "reverse_text",
    "slow_down",
    "tampering",
]
