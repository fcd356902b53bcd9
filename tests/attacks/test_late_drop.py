"""What is revealed when a client drops at one sum says nothing about its input to another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secagg import client_checks
from secagg.errors import BadKey
from secagg.keys import KEY_BYTES
from secagg.session_secrets import Vault
from secagg.trust_levels import Trust
from tests.attacks.attackers.cheated_sum import Vector
from tests.attacks.attackers.late_drop import late_drop
from tests.attacks.guards import BOTH, allow, assert_refused
from tests.attacks.rig import Rig

VICTIM = 1
SUMS = 3


def inputs_of(rig: Rig) -> list[dict[int, Vector]]:
    rng = np.random.default_rng(11)
    size = len(rig.vectors[0])
    return [
        {k: rng.integers(0, 1 << 32, size, dtype=np.uint32) for k in range(rig.clients)} for _ in range(SUMS)
    ]


def share_one_mask_key(patch: pytest.MonkeyPatch) -> None:
    """The forbidden design: one key per client, and seeds of all sums derived from it."""
    original = Vault.__init__

    def init(self: Vault, **settings: Any) -> None:
        original(self, **settings)
        self._mask_keys = dict.fromkeys(self._mask_keys, self._random(KEY_BYTES))

    patch.setattr(Vault, "__init__", init)


@pytest.mark.parametrize("trust", BOTH)
def test_a_late_drop_opens_no_earlier_input(trust: Trust) -> None:
    rig = Rig(5, trust, sums=SUMS + 1)
    inputs = inputs_of(rig)
    guesses = late_drop(rig, rig.set_up(threshold=3), VICTIM, inputs)
    for guess, vectors in zip(guesses, inputs, strict=True):
        assert guess is not None
        # A wrong guess is uniform. The seeds are fixed, and with them not one coordinate fits by chance.
        assert not (guess == vectors[VICTIM]).any()


@pytest.mark.parametrize("trust", BOTH)
def test_with_one_mask_key_for_all_sums_every_earlier_input_is_read(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two guards are off: the vault's key per sum, and the peers' check that no key occurs twice."""
    share_one_mask_key(monkeypatch)
    monkeypatch.setattr(client_checks, "check_keys", allow)
    rig = Rig(5, trust, sums=SUMS + 1)
    inputs = inputs_of(rig)
    guesses = late_drop(rig, rig.set_up(threshold=3), VICTIM, inputs)
    for guess, vectors in zip(guesses, inputs, strict=True):
        assert guess is not None
        assert (guess == vectors[VICTIM]).all()


def test_a_key_that_serves_two_sums_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    share_one_mask_key(monkeypatch)
    rig = Rig(5, Trust.MALICIOUS, sums=SUMS + 1)
    with pytest.raises(BadKey):
        rig.set_up(threshold=3)
    assert_refused(rig.machines[0])
