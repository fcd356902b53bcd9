"""Sybils: identities that the server made up, outside the registry, to fill a client's cohort."""

from __future__ import annotations

from tests.attacks.attackers.cheated_sum import Vector
from tests.attacks.attackers.colluder import Colluder
from tests.attacks.attackers.siege import besiege
from tests.attacks.rig import Rig

FIRST_SYBIL = 1_000_000


def surround_with_sybils(rig: Rig, victim: int, *, count: int, threshold: int) -> Vector:
    """The vector of `victim` in a cohort of `count` Sybils, each of which signs with a key of its own."""
    sybils = [Colluder(rig, FIRST_SYBIL + k) for k in range(count)]
    return besiege(rig, victim, sybils, threshold=threshold)
